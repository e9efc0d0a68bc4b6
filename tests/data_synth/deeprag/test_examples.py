"""Training examples from DeepRAG's search results."""

import asyncio
from pathlib import Path
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import PLAIN, Found, OnePassage, Replay, TreeModel

from rag_train.data_synth.deeprag.examples import chain_record, preference_pairs, sft_record
from rag_train.data_synth.deeprag.search import SearchConfig, SearchResult, TreeSearch
from rag_train.data_synth.methods.deeprag import DeepRAGData, DeepRAGRecipe
from rag_train.formats import reader
from rag_train.llm.base import Completion, Sampling
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Decision, Passage, Question, SFTRecord
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import build

QUESTION = Question(id="q", question="Which?", answers=["right"])
PROMPT = "Question: Which?\n"


def explore(seed: int) -> SearchResult:
    async def run() -> SearchResult:
        searcher = TreeSearch(TreeModel(seed), AsyncRetriever(OnePassage()), SearchConfig())
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


def test_chains_of_thought_are_asked_for_as_at_inference():
    """CoT* and CoT-Retrieve* are trained on the prompts that the strategies cot and cot-retrieve send."""
    result = next(result for result in map(explore, range(100)) if result.best and len(result.best.steps) > 1)
    assert result.best is not None
    passages = [Passage(id="0", title="A", text="One.")]
    for strategy, read in (("cot", []), ("cot-retrieve", passages)):
        record = chain_record(QUESTION, result, read)
        assert record is not None
        llm = Replay({"Thought:": record.segments[1].text})
        asyncio.run(build(strategy, Kit(llm, Found(passages), passages=1)).answer(QUESTION))
        assert llm.asked == [record.prompt + record.segments[0].text]
        thought = " ".join(step.answer for step in result.best.steps)
        assert reader.parse(record.segments[1].text) == (thought, result.best.answer)
    assert chain_record(QUESTION, next(r for r in map(explore, range(100)) if not r.best), []) is None


class Trees(TreeModel):
    """A tree for each question, by its length."""

    tokenizer = PLAIN

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        self.seed = len(prompt.partition("\n")[0])
        return await super().complete(prompt, sampling)


def test_chains_are_of_the_trajectories_of_stage_1(tmp_path: Path):
    def made(stage: Literal["sft", "cot", "cot_retrieve"]) -> list[SFTRecord]:
        output = tmp_path / f"{stage}.jsonl"
        recipe = DeepRAGRecipe(
            stage=stage, questions=[], index="", model="tree", output=str(output), instructions=False
        )
        questions = [Question(id=str(i), question="q" * (i + 1), answers=["right"]) for i in range(12)]
        retriever = AsyncRetriever(OnePassage())
        asyncio.run(DeepRAGData(recipe, questions, Trees(0), retriever).write())
        return [SFTRecord.model_validate_json(line) for line in output.read_text().splitlines()]

    trajectories, chains, with_passages = made("sft"), made("cot"), made("cot_retrieve")
    kept = [(record.id, record.answer) for record in trajectories]
    assert kept and kept == [(r.id, r.answer) for r in chains] == [(r.id, r.answer) for r in with_passages]
    assert not any("Context:" in record.prompt for record in chains)
    assert all(record.prompt.startswith("Context:") for record in with_passages)
