"""Claims decided by the interval of a paired difference."""

from __future__ import annotations

import pytest

from rag_train.eval.demo.claims import PairedClaim, clusters, pooled, verdict
from rag_train.eval.metrics.intervals import Interval
from rag_train.eval.metrics.scores import score
from rag_train.schema import GoldStep, Question, Trajectory


@pytest.mark.parametrize(
    ("lo", "margin", "held"), [(0.01, 0.0, True), (0.0, 0.0, False), (-0.01, 0.02, True), (-0.02, 0.02, False)]
)
def test_claim_holds_if_the_interval_stays_above_the_margin(lo: float, margin: float, held: bool):
    claim = PairedClaim("A beats B", Interval(mean=0.05, lo=lo, hi=0.1), "em", margin)
    assert claim.held is held
    assert claim.line().startswith("held " if held else "not held ")
    assert claim.evidence == f"+0.050 [{lo:+.3f}, +0.100] em"


@pytest.mark.parametrize(
    ("lo", "hi", "seeds", "margin", "expected"),
    [
        (0.01, 0.09, [0.02, 0.05, 0.08], 0.0, "holds"),
        (0.01, 0.09, [-0.01, 0.05, 0.11], 0.0, "cannot be told apart"),  # one seed says otherwise
        (-0.01, 0.09, [0.02, 0.04, 0.06], 0.0, "cannot be told apart"),
        (-0.01, 0.01, [-0.01, 0.0, 0.01], 0.02, "holds"),
        (-0.01, 0.01, [-0.02, 0.0, 0.02], 0.02, "cannot be told apart"),
        (-0.09, -0.03, [-0.08, -0.06, -0.04], 0.02, "fails"),
        (-0.09, -0.03, [-0.12, -0.05, -0.01], 0.02, "cannot be told apart"),
    ],
)
def test_a_verdict_needs_the_interval_and_every_seed(
    lo: float, hi: float, seeds: list[float], margin: float, expected: str
):
    assert verdict(lo, hi, seeds, margin) == expected


def test_seeds_are_pooled_with_distinct_questions_and_clusters():
    step = GoldStep(subquery="Who?", answer="A.", entity="Moby Dick")
    question = Question(id="q", question="Who?", answers=["A"], decomposition=[step])
    scores = score([question], [Trajectory(question_id="q", question="Who?", strategy="direct", answer="A")])
    assert [s.question_id for s in pooled([scores, scores])] == ["0/q", "1/q"]
    assert clusters([[question], [question]]) == ["0/Moby Dick", "1/Moby Dick"]
    assert clusters([[question], [question]], one_world=True) == ["Moby Dick", "Moby Dick"]
