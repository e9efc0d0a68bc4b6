"""DeepRAG's loop: a controller that does not keep to the grammar makes a bounded number of calls and searches."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import Found, Says, completion

from rag_train.formats import deeprag
from rag_train.llm.base import Completion, Sampling
from rag_train.schema import Passage, Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import build

FOLLOW, SEARCH = deeprag.FOLLOW_UP, deeprag.SEARCH
PIECES = ["", "\n", " x\n", f"{FOLLOW} who?\n", f"\n{FOLLOW}", SEARCH, f"{SEARCH.lower()}\n", deeprag.INTERMEDIATE]
PIECES += ["Question: new\n", f"{deeprag.FINAL}", f"{deeprag.CONTEXT} c\n", "word " * 300]


class Writes(Says):
    """An engine that writes the texts in turn, and then the last of them again, and tells what ended each."""

    def __init__(self, texts: list[str]):
        self.texts, self.made = texts, 0

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        text = self.texts[min(self.made, len(self.texts) - 1)]
        self.made += 1
        got = completion(text, sampling)
        stops = [stop for stop in sampling.stop if got.text + stop == text[: len(got.text) + len(stop)]]
        return Completion(
            got.text,
            got.token_ids,
            got.usage,
            stops[0] if stops else None,
            len(got.token_ids) == sampling.max_tokens,
            got.logprobs,
        )


def answer(spec: str, *texts: str) -> tuple[Trajectory, Found]:
    found = Found([Passage(id="p", title="T", text="Text.")])
    kit = Kit(Writes(list(texts)), found, instructions=False)
    return asyncio.run(build(spec, kit).answer(Question(id="q", question="Who?", answers=["x"]))), found


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["adaptive", "parametric", "retrieve"])
@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map("".join), min_size=1, max_size=8))
def test_any_text_ends_within_the_stated_calls_and_searches(mode: str, texts: list[str]):
    got, found = answer(f"deeprag,mode={mode},max_steps=3", *texts)
    assert len(found.queries) == got.retrievals <= 3
    assert len(got.calls) <= (5 if mode == "adaptive" else 7)


def test_a_controller_that_writes_nothing_must_answer():
    got, found = answer("deeprag", f"{FOLLOW} Who?\n{SEARCH}", "", " Ada")
    assert [(s.subquery, s.answer, len(s.passages)) for s in got.steps] == [("Who?", "", 1)]
    assert got.answer == "Ada" and found.queries == ["Who?"] and len(got.calls) == 3
    assert got.notes["cut"] == "the controller did not go on, at the subquery 'Who?'"


def test_a_follow_up_in_place_of_an_answer_counts_as_a_step():
    got, found = answer("deeprag", f"\n{FOLLOW} again?\n{SEARCH}")
    assert len(found.queries) == 6 == len(got.steps) and not any(step.answer for step in got.steps)
    assert all(step.passages for step in got.steps)
    assert got.notes["cut"].startswith("ended after max_steps=6")


def test_a_cut_call_leaves_a_note_of_its_subquery():
    got, found = answer("deeprag,max_tokens=4", f"{FOLLOW} Who?\nLet's search the question", "Ada")
    assert got.notes["cut"] == (
        "a call ended at max_tokens=4, at the subquery 'Who?'; controller: 1 of its texts at the limit of tokens"
    )
    assert not got.steps and not found.queries and got.answer == "Ada"


def test_a_search_that_was_only_written_is_not_a_retrieval():
    said = f"{FOLLOW} Who?\n{SEARCH.lower()}\nIntermediate answer: Ada\n{FOLLOW} When?\n{SEARCH}"
    got, found = answer("deeprag", said, f" 1815\n{deeprag.FINAL} 1815")
    assert [(s.decision, bool(s.passages)) for s in got.steps] == [("parametric", False), ("retrieve", True)]
    assert found.queries == ["When?"] and got.answer == "1815" and "cut" not in got.notes


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data())
def test_a_guided_controller_keeps_to_the_grammar(data: st.DataObject):
    """Whatever a guided engine writes, every step has a subquery and an answer, and there is a final answer."""
    written = []

    class Guided(Says):
        async def complete(self, prompt: str, sampling: Sampling) -> Completion:
            assert sampling.regex
            text = data.draw(st.from_regex(sampling.regex, fullmatch=True, alphabet=st.characters(codec="ascii")))
            written.append(text)
            head, search, _ = text.partition(SEARCH)
            return replace(completion(head, sampling), text=head, stop=search or None)

    kit = Kit(Guided(""), Found([Passage(id="p", title="T", text="Text.")]), instructions=False)
    question = Question(id="q", question="Who?", answers=["x"])
    got = asyncio.run(build("deeprag,guided=true,max_steps=4", kit).answer(question))
    assert got.answer and all(step.subquery and step.answer for step in got.steps)
    assert "cut" in got.notes or got.retrievals == sum(text.endswith(SEARCH) for text in written)
