"""Budgets and costs of a question: every strategy keeps to them and answers from what was found."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from support.fakes import Found, Replay, Says

from rag_train.llm.base import Completion, Sampling, Usage
from rag_train.schema import Passage, Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import STRATEGIES, build

PASSAGES = [Passage(id=str(i), title=f"T{i}", text=f"Text {i}.") for i in range(3)]
ASKED = Question(id="q", question="Who?", answers=["x"], metadata={"s_pop": 10**6})
PLAN = [{"id": f"Q1.{i}", "question": f"{i}?", "parents": []} for i in range(1, 6)]
PLAN.append({"id": "Q2.1", "question": " ".join(f"<A1.{i}>" for i in range(1, 6)), "parents": []})


def answer(spec: str, llm: Says | Replay, found: Found) -> Trajectory:
    kinds = dict.fromkeys(("sparse", "dense", "web"), found)
    kit = Kit(llm, found, instructions=False, retrievers=kinds)
    return asyncio.run(build(spec, kit).answer(ASKED))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "dragin"])
@pytest.mark.parametrize("limits", [(1, 0), (2, 1), (4, 2)])
def test_every_strategy_keeps_to_its_budget(name: str, limits: Sequence[int]):
    found = Found(PASSAGES)
    got = answer(f"{name},max_calls={limits[0]},max_retrievals={limits[1]}", Says("Follow up: more?\n yes"), found)
    assert len(got.calls) <= limits[0] and len(found.queries) <= limits[1]
    assert got.error is None and (got.answer or got.notes)


def test_a_spent_budget_is_noted_and_one_call_answers_from_what_was_found():
    llm = Replay({"DAG:\n": json.dumps(PLAN), "Generation:\n": '{"Response":"r"}', "final answer is:": " Ada"})
    got = answer("planrag,max_calls=4", llm, Found(PASSAGES))
    assert got.notes["budget"] == "max_calls=4 reached; answered from what was found"
    assert (got.answer, len(got.calls), got.plan is not None) == ("Ada", 4, True)
    assert "Context: 1? r\n" in llm.asked[-1] and "Context: T0: Text 0.\n" in llm.asked[-1]
    assert got.retrievals == 5  # also those of the nodes that were not answered


def test_work_at_the_same_time_is_finished_when_the_budget_is_spent():
    found = Found(PASSAGES, 0.01)
    got = answer("dualrag,max_retrievals=1", Says('[{"entity": "a", "queries": ["a", "b"]}]'), found)
    assert len(found.queries) <= 1 and got.retrievals == len(found.queries)


def test_a_spent_token_budget_ends_in_one_more_call():
    llm = Replay({"Next thought:": " so", "final answer is:": " Ada"})  # one token read, one written, each call
    got = answer("ircot,max_question_tokens=2", llm, Found(PASSAGES))
    assert (len(got.calls), got.answer) == (2, "Ada")


def test_text_beyond_the_token_limit_is_cut():
    class Endless(Says):
        async def complete(self, prompt: str, sampling: Sampling) -> Completion:
            return Completion("more " * 10**5, (0,), Usage(1, 1))

    got = answer("cot", Endless(""), Found(PASSAGES))
    assert len(got.reasoning) <= 512 * 64 and got.answer is None


def test_costs_count_only_queries_that_were_sent():
    llm = Replay({"DAG:\n": json.dumps(PLAN[:3]), "Generation:\n": '{"Response":"r"}'})
    found = Found(PASSAGES)
    got = answer("planrag-question", llm, found)
    assert (got.retrievals, got.rounds, found.queries) == (1, 1, ["Who?"])
    got = answer("adaptive-retrieval", Says(" Ada"), found)  # the subject is popular: no retrieval
    assert (got.retrievals, got.rounds) == (0, 0)
