"""Algorithm 1 against exhaustive search: the kept trajectory, the order of the nodes, and the number of calls."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import OnePassage, Says, TreeModel

from rag_train.answers import RULES, either_contains
from rag_train.data_synth.deeprag.search import SearchConfig, SearchResult, TreeSearch, leaves, nodes
from rag_train.errors import PromptTooLong, Refused
from rag_train.formats import deeprag
from rag_train.llm.base import Completion, EngineError, Sampling, Usage
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import GoldStep, Passage, Question
from rag_train.strategies.deeprag import DeepRAG

QUESTION = Question(id="q", question="Which?", answers=["right"])
PROMPT = "Question: Which?\n"


def search(
    model: Any, config: SearchConfig | None = None, *, whole: bool = False, question: Question = QUESTION
) -> SearchResult:
    """Search the tree that ``model`` writes, or explore all of it."""

    async def run() -> SearchResult:
        searcher = TreeSearch(model, AsyncRetriever(OnePassage()), config or SearchConfig())
        return await (searcher.explore if whole else searcher.search)(question, PROMPT)

    return asyncio.run(run())


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(0, 5))
@settings(max_examples=60)
def test_keeps_the_correct_trajectory_with_the_fewest_or_most_retrievals(seed: int, max_steps: int):
    config = SearchConfig(max_steps=max_steps)
    model, whole_model = TreeModel(seed), TreeModel(seed)
    result, whole = search(model, config), search(whole_model, config, whole=True)
    assert all(len(node.steps) <= max_steps for node in nodes(whole.root))
    costs = [leaf.retrievals for leaf in leaves(whole.root) if leaf.correct]
    assert (result.best.retrievals if result.best else None) == (min(costs) if costs else None)
    most = search(TreeModel(seed), replace(config, variant="most"))
    assert (most.best.retrievals if most.best else None) == (max(costs) if costs else None)
    assert len(set(model.prompts)) == len(model.prompts) == len(result.calls)  # no prompt is sent twice
    assert set(model.prompts) <= set(whole_model.prompts)


def test_the_search_takes_no_more_steps_than_inference():
    """Models were trained on trajectories that inference cuts off."""
    assert SearchConfig().max_steps == DeepRAG.max_steps


@pytest.mark.slow
def test_expands_nodes_in_order_of_retrievals():
    seen = []
    for seed in range(200):
        search(model := TreeModel(seed))
        for prompt in model.prompts:
            if prompt.endswith("\n"):
                seen.append((seed, prompt.count("Let's search")))
    assert seen == sorted(seen)


def test_verified_search_keeps_no_trajectory_that_is_right_by_luck():
    """The model's memory is wrong, its reading right, and its final answer right in any case.

    The subquery names an answer of the decomposition, and so does every answer to it.
    """

    class Lucky(TreeModel):
        async def complete(self, prompt: str, sampling: Sampling) -> Completion:
            steps = deeprag.parse(prompt.partition("\n")[2]).steps
            if prompt.endswith(deeprag.INTERMEDIATE):
                text = " In Peru it is Lima." if deeprag.SEARCH in prompt else " In Peru it is Rome."
            else:
                text = f"{deeprag.FINAL} right" if steps else f"{deeprag.FOLLOW_UP} Which is the capital of Peru?"
            return Completion(text=text, token_ids=(0,), usage=Usage(1, 1), stop="\n")

    gold = [
        GoldStep(subquery="Which is the country?", answer="It is Peru.", value="Peru"),
        GoldStep(subquery="What is its capital?", answer="It is Lima.", value="Lima"),
    ]

    def kept(question: Question, *, verify: bool) -> str:
        best = search(Lucky(0), SearchConfig(verify=verify), question=question).best
        assert best is not None
        return best.steps[0].answer

    annotated = QUESTION.model_copy(update={"decomposition": gold})
    assert kept(annotated, verify=False) == kept(QUESTION, verify=True) == "In Peru it is Rome."
    assert kept(annotated, verify=True) == "In Peru it is Lima."


@pytest.mark.parametrize(
    ("scoring", "answers", "said", "match"),
    [
        ("triviaqa", ["Jack in the box"], "Jack-in-the-box", "exact"),
        ("triviaqa", ["Jack in the box"], "a Jack-in-the-box toy", "contains"),
        ("curatedtrec", [r"19\d\d"], "1984", "exact"),
        ("choice", ["Jupiter", "C"], "(C) Jupiter", "exact"),
    ],
)
def test_an_answer_is_correct_by_the_rules_of_the_questions_dataset(
    scoring: str, answers: list[str], said: str, match: Any
):
    says, config = Says(f"{deeprag.FINAL} {said}\n"), SearchConfig(match=match)
    for metadata, found in (({"scoring": scoring}, True), ({}, False)):
        question = QUESTION.model_copy(update={"answers": answers, "metadata": metadata})
        assert (search(says, config, question=question).best is not None) == found


def test_either_text_may_contain_the_other_but_nothing_is_no_answer():
    rome = ["Rome, Italy"]
    assert either_contains("Rome", rome) and either_contains("in Rome, Italy, then", rome)
    assert not either_contains("Rom", rome) and not either_contains("...", rome) and not either_contains(None, rome)
    assert not either_contains("9", [r"19\d\d"], RULES["curatedtrec"])


@given(st.integers(0, 10_000), st.integers(0, 3))
@settings(max_examples=20)
def test_no_trajectory_has_more_retrievals_than_the_limit(seed: int, limit: int):
    whole = search(TreeModel(seed), SearchConfig(max_retrievals=limit), whole=True)
    assert max(node.retrievals for node in nodes(whole.root)) <= limit


def test_a_writer_asks_and_reads_and_the_model_remembers_and_answers():
    def writes(prompt: str) -> str:
        if prompt.endswith(deeprag.INTERMEDIATE):
            return "writer"
        return f"{deeprag.FINAL} writer" if deeprag.INTERMEDIATE in prompt else f"{deeprag.FOLLOW_UP} who?"

    searcher = TreeSearch(Says("model"), AsyncRetriever(OnePassage()), SearchConfig(), Says(writes))
    question = QUESTION.model_copy(update={"answers": ["model"]})
    root = asyncio.run(searcher.explore(question, PROMPT)).root
    assert [step.answer for child in root.children for step in child.steps] == ["model", "writer"]
    assert [leaf.answer for leaf in leaves(root)] == ["model", "model"]


def test_the_second_search_reads_the_gold_passages_and_tries_both_decisions():
    def says(prompt: str) -> str:
        if prompt.endswith(deeprag.INTERMEDIATE):
            return "Gold" if "gold text" in prompt else "no"
        steps = deeprag.parse(prompt.partition("\n")[2]).steps
        return f"{deeprag.FINAL} {steps[-1].answer}" if steps else f"{deeprag.FOLLOW_UP} who?"

    passages = [Passage(id="g", title="G", text="gold text")]
    question = QUESTION.model_copy(update={"answers": ["Gold"], "gold_passages": passages})
    for fallback in (False, True):
        result = search(Says(says), SearchConfig(gold_fallback=fallback), question=question)
        assert (result.best is not None) == fallback == (result.source == "gold_fallback")
    assert [child.retrievals for child in result.root.children] == [0, 1]
    assert result.best is not None and result.best.steps[0].passages == passages


def test_keeps_lines_that_fit_no_format():
    result = search(Says("I think it is Lima."))
    assert result.best is None and [node.unparsed for node in nodes(result.root)] == ["I think it is Lima."]


def test_guided_search_restricts_every_line_and_finds_the_same():
    """Every text of the model is a line of the format already, so that the restriction changes nothing."""
    patterns: list[tuple[str, str | None]] = []

    class Guided(TreeModel):
        async def complete(self, prompt: str, sampling: Sampling) -> Completion:
            completion = await super().complete(prompt, sampling)
            patterns.append((completion.text, sampling.regex))
            return completion

    free, guided = (search(Guided(3), SearchConfig(guided=guided)) for guided in (False, True))
    assert free.root == guided.root
    half = len(patterns) // 2
    assert {pattern for _, pattern in patterns[:half]} == {None}
    assert all(re.fullmatch(pattern or "", text.rstrip("\n") + "\n") for text, pattern in patterns[half:])


@pytest.mark.slow
@given(st.integers(0, 10_000), st.integers(20, 400))
@settings(max_examples=60)
def test_a_branch_that_is_too_long_does_not_drop_the_others(seed: int, context: int):
    """One overlong branch rejected the whole question."""

    class Short(TreeModel):
        async def complete(self, prompt, sampling):
            if len(prompt) > context:
                raise ValueError("too long")
            return await super().complete(prompt, sampling)

    found = list(leaves(search(Short(seed), whole=True).root))
    whole = list(leaves(search(TreeModel(seed), whole=True).root))
    assert [leaf for leaf in whole if leaf in found] == found, "the short branches are explored as without a limit"


class Filtered(Refused):
    reason = "content filter"


@pytest.mark.parametrize(
    ("error", "reason"), [(PromptTooLong("long"), "too long"), (Filtered("no"), "content filter")]
)
def test_a_branch_that_is_refused_ends_alone_and_is_counted(error: Refused, reason: str):
    class Refuses(TreeModel):
        async def complete(self, prompt: str, sampling: Sampling) -> Completion:
            if deeprag.SEARCH in prompt:
                raise error
            return await super().complete(prompt, sampling)

    result = search(Refuses(3), whole=True)
    refused = [why for node in nodes(result.root) for why in node.refused]
    assert refused and set(refused) == {reason} and all(leaf.retrievals == 0 for leaf in leaves(result.root))
    with pytest.raises(type(error)):
        search(Says(error))


def test_the_siblings_of_a_call_that_fails_are_cancelled():
    """They ran on, beside the next attempt at the question."""
    running: set[str] = set()

    class Fails(TreeModel):
        async def complete(self, prompt: str, sampling: Sampling) -> Completion:
            if not prompt.endswith(deeprag.INTERMEDIATE):
                return await super().complete(prompt, sampling)
            if deeprag.SEARCH in prompt:
                raise EngineError("down")
            running.add(prompt)
            try:
                await asyncio.Event().wait()
            finally:
                running.discard(prompt)

    async def main() -> None:
        with pytest.raises(EngineError):
            await TreeSearch(Fails(3), AsyncRetriever(OnePassage()), SearchConfig()).search(QUESTION, PROMPT)
        assert not running

    asyncio.run(main())
