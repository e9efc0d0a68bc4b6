"""Training examples from DeepRAG's search results."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import OnePassage, TreeModel

from rag_train.data_synth.deeprag.examples import preference_pairs, sft_record
from rag_train.data_synth.deeprag.search import SearchConfig, SearchResult, TreeSearch
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Decision, Question

QUESTION = Question(id="q", question="Which?", answers=["right"])
PROMPT = "Question: Which?\n"


def explore(seed: int) -> SearchResult:
    async def run() -> SearchResult:
        searcher = TreeSearch(TreeModel(seed), AsyncRetriever(OnePassage()), SearchConfig())  # pyright: ignore
        return await searcher.explore(QUESTION, PROMPT)

    return asyncio.run(run())


@given(st.integers(0, 10_000))
@settings(max_examples=40)
def test_examples_follow_the_trajectory_with_the_fewest_retrievals(seed: int):
    result = explore(seed)
    pairs = preference_pairs(QUESTION, PROMPT, result)
    if result.best is None:
        assert pairs == [] and sft_record(QUESTION, PROMPT, result) is None
        return
    record = sft_record(QUESTION, PROMPT, result)
    assert record is not None and "".join(s.text for s in record.segments) == record.completion
    for pair, step in zip(pairs, result.best.steps, strict=True):
        retrieved = step.decision is Decision.RETRIEVE
        assert pair.chosen.startswith("Let's search" if retrieved else "Intermediate answer:")
        assert pair.rejected.startswith("Intermediate answer:" if retrieved else "Let's search")
        assert pair.prompt.endswith(f"Follow up: {step.subquery}\n") and pair.prompt.startswith(PROMPT)
        assert (PROMPT + record.completion).startswith(pair.prompt + pair.chosen)
    at_all_nodes = {pair.prompt: pair.chosen for pair in preference_pairs(QUESTION, PROMPT, result, "all_nodes")}
    assert {pair.prompt for pair in pairs} <= set(at_all_nodes)
    for pair in preference_pairs(QUESTION, PROMPT, result, "sentence_wise"):
        assert pair.chosen.count("Let's search") < pair.rejected.count("Let's search")
