"""Causes of wrong answers."""

from __future__ import annotations

import pytest

from rag_train.eval.matrix.tables import cause_table
from rag_train.eval.metrics.causes import CAUSES, why
from rag_train.eval.metrics.summary import pool, summarize
from rag_train.schema import Decision, GoldStep, Passage, Question, Step, Trajectory

ASKED = Question(
    id="q",
    question="Where was the director of Jaws born?",
    answers=["Cincinnati"],
    decomposition=[
        GoldStep(subquery="Who directed Jaws?", answer="Steven Spielberg directed it.", value="Steven Spielberg"),
        GoldStep(subquery="Where was Steven Spielberg born?", answer="Cincinnati"),
    ],
)
RIGHT = [Passage(id="1", title="Jaws", text="Jaws is a film by Steven Spielberg.")]
WRONG = [Passage(id="2", title="Alien", text="Alien is a film by Ridley Scott.")]


def step(subquery: str, answer: str, passages: list[Passage] | None = None) -> Step:
    decision = Decision.PARAMETRIC if passages is None else Decision.RETRIEVE
    return Step(subquery=subquery, decision=decision, passages=passages or [], answer=answer)


def answered(answer: str, *steps: Step) -> Trajectory:
    return Trajectory(
        question_id="q", question=ASKED.question, strategy="deeprag", answer=answer, steps=list(steps)
    )


FIRST, SECOND = (gold.subquery for gold in ASKED.decomposition)
DIRECTED = step("Who made Jaws?", "Steven Spielberg.", RIGHT)
CASES = {
    "subquery": [step("When was Jaws made?", "1975", RIGHT)],
    "passages": [step(FIRST, "Ridley Scott", WRONG)],
    "reading": [step(FIRST, "Jaws", RIGHT)],
    "memory": [DIRECTED, step(SECOND, "Phoenix")],
    "stopped early": [DIRECTED],
    "final answer": [DIRECTED, step(SECOND, "In Cincinnati.")],
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_first_wrong_step_is_the_cause(cause: str):
    assert why(ASKED, answered("Ohio", *CASES[cause]))[0] == cause


def test_a_subquery_in_other_words_is_right_if_its_answer_is():
    assert why(ASKED, answered("Ohio", DIRECTED, step(SECOND, "Phoenix")))[1].expected == "Cincinnati"


def test_two_sides_may_be_looked_up_in_either_order():
    sides = ASKED.model_copy(update={"decomposition": ASKED.decomposition[::-1]})
    reversed_order = answered("Ohio", DIRECTED.model_copy(update={"subquery": FIRST}), step(SECOND, "Phoenix"))
    assert why(sides, reversed_order)[0] == "memory"


def test_seeds_are_added_up_and_right_answers_are_left_out():
    wrong, right = answered("Ohio", *CASES["memory"]), answered("Cincinnati", *CASES["final answer"])
    runs = [summarize([ASKED], [t], strategy="deeprag", seed=seed) for seed, t in enumerate([wrong, wrong, right])]
    [pooled] = pool(runs)
    assert [(cause.cause, cause.count) for cause in pooled.causes] == [("memory", 2)]
    table = cause_table([pooled])
    assert table.columns == ["Strategy", "Memory"] and table.rows == [["deeprag", "2"]]


def test_strategies_of_a_single_step_have_no_causes():
    assert summarize([ASKED], [answered("Ohio", step(ASKED.question, "Ohio", RIGHT))], strategy="rag").causes == []
