"""Measures of single trajectories against cases computed by hand."""

from __future__ import annotations

import pytest
from support.trajectories import step, trajectory

from rag_train.eval.matrix.tables import wording_table
from rag_train.eval.metrics.measures import compound, depth, rouge, wording
from rag_train.eval.metrics.scores import score
from rag_train.eval.metrics.summary import Wording, pool, summarize
from rag_train.schema import Plan, PlanNode, Question


def test_compound_is_the_share_of_requested_facts() -> None:
    question = Question(id="q", question="?", answers=["1953 && South Korea"], type="compound")
    assert compound(question, "in South Korea, 1953") == 1.0
    assert compound(question, "1953 in Korea") == 0.5 and compound(question, None) == 0.0
    groups = {"answer_groups": [["Ann"], ["Bo", "B."], ["C"], ["D"]]}
    assert compound(Question(id="q", question="?", answers=["long"], metadata=groups), "ann, then b") == 0.5


@pytest.mark.slow
def test_rouge_takes_the_best_reference() -> None:
    question = Question(
        id="q", question="?", answers=["nothing alike", "the cats sat on mats"], metadata={"long_form": True}
    )
    assert rouge(question, "the cat sat on the mat") == pytest.approx((2 * 3 / (5 + 4), 2 * 5 / (6 + 5)))
    (scored,) = score([question], [trajectory()])
    assert (scored.rouge2, scored.rouge_l) == (0.0, 0.0)


def test_counts_depth_and_words_of_subqueries() -> None:
    plan = Plan(
        nodes=[
            PlanNode(id="Q1.1", question="a?"),
            PlanNode(id="Q1.2", question="b?"),
            PlanNode(id="Q2.1", question="c?", parents=["Q1.1", "Q1.2"]),
        ]
    )
    assert [depth(trajectory(plan=plan)), depth(trajectory(plan=Plan())), depth(trajectory(step(), step()))] == [
        2,
        0,
        2,
    ]
    run = trajectory(step("Who wrote it, and when?"), step("Is that WHERE Band or bandy live?"))
    assert wording(run) == (2, 3, 1, 2)
    question = Question(id="q", question="?", answers=["a"])
    summary = summarize([question], [run], strategy="s")
    assert summary.depths == {0: 0.0, 1: 0.0, 2: 1.0}
    assert summary.wording == Wording(wh=1.5, pronouns=0.5, conjunctions=1.0)
    assert wording_table([summary]).rows == [["s", "1.50", "0.50", "1.00"]]
    earlier = summary.model_copy(update={"wording": Wording(wh=1.5, conjunctions=1.0), "seeds": [1]})
    [joined] = pool([summary, earlier])
    assert joined.wording == Wording(wh=1.5, conjunctions=1.0), "what was not counted in all seeds has no mean"
