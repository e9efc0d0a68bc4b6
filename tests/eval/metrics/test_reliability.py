"""Reliability of the probability of retrieving, against cases computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trajectories import step, trajectory

from rag_train.eval.metrics.reliability import forecasts_by_cot, forecasts_by_facts, reliability
from rag_train.eval.metrics.summary import pool, summarize
from rag_train.schema import Question


def test_bins_ece_and_brier_score() -> None:
    found = reliability([(0.0, False), (0.05, True), (0.95, True), (1.0, False)])
    assert found and [(bin.lo, bin.count) for bin in found.bins] == [(0.0, 2), (0.9, 2)]
    assert found.ece == pytest.approx(0.5 * (0.5 - 0.025) + 0.5 * (0.975 - 0.5))
    assert found.brier == pytest.approx((0 + 0.95**2 + 0.05**2 + 1) / 4)
    assert reliability([]) is None


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=60), st.data())
def test_reliability_of_parts_adds_up(decisions: list[tuple[float, bool]], data: st.DataObject) -> None:
    whole = reliability(decisions)
    at = data.draw(st.integers(1, len(decisions) - 1))
    first, second = reliability(decisions[:at]), reliability(decisions[at:])
    assert whole and first and second and whole.count == len(decisions) and 0 <= whole.ece <= 1
    joined = first + second
    assert joined.ece == pytest.approx(whole.ece) and joined.brier == pytest.approx(whole.brier)
    if all(probability == lacking for probability, lacking in decisions):
        assert whole.ece == whole.brier == 0


def test_summaries_contain_reliability() -> None:
    questions = [Question(id=id, question="?", answers=["a"]) for id in "12"]
    run = [
        trajectory(step("Known fact?", retrieve_probability=0.25), step("No fact"), question_id="1"),
        trajectory(step("open", "parametric", retrieve_probability=0.75), question_id="2"),
    ]
    assert forecasts_by_facts(run, {"known fact": True, "open": False}) == [(0.25, False), (0.75, True)]
    cot = [trajectory(question_id="1", answer="a"), trajectory(question_id="2", answer="b")]
    assert forecasts_by_cot(questions, run, cot) == [(0.25, False), (0.75, True)]
    summary = summarize(questions, run, strategy="s", cot=cot, known={"open": True})
    assert summary.cot_calibration and summary.cot_calibration.ece == pytest.approx(0.25)
    twice = pool([summary, summary])[0]
    assert twice.cot_calibration and (twice.cot_calibration.count, twice.cot_calibration.ece) == (4, 0.25)
    assert twice.fact_calibration and twice.fact_calibration.ece == pytest.approx(0.75)
