"""Stage III against the sweep of thresholds, and the seeds that a benchmark may run."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from rag_train.errors import UserError
from rag_train.eval.benchmarks.frontier import above
from rag_train.eval.benchmarks.reporting import differences, recorded
from rag_train.eval.benchmarks.stage3 import PROTOCOL, models_of
from rag_train.eval.metrics.summary import RunSummary
from rag_train.schema import Question, Step, Trajectory


def point(retrievals: int, right: int) -> RunSummary:
    """The run of ten questions with ``retrievals`` searches in all and ``right`` right answers."""
    from rag_train.eval.metrics.summary import summarize

    questions = [Question(id=str(i), question="Who?", answers=["A"]) for i in range(10)]
    trajectories = [
        Trajectory(
            question_id=str(i),
            question="Who?",
            strategy="deeprag",
            answer="A" if i < right else "B",
            steps=[Step(subquery="Who?", decision="retrieve", answer="A")] * (i < retrievals),
        )
        for i in range(10)
    ]
    return summarize(questions, trajectories, strategy="deeprag", stage="", seed=0)


def test_a_point_is_compared_with_the_sweep_at_as_many_retrievals():
    sweep = [point(8, 6), point(2, 2), point(4, 5), point(4, 3), point(5, 5), point(7, 1)]
    assert above(point(3, 4), sweep) == pytest.approx(0.4 - 0.35)
    assert above(point(6, 6), sweep) == pytest.approx(0.6 - 0.55)  # between 4 and 8: the others are below that line
    assert above(point(8, 5), sweep) == pytest.approx(-0.1)
    assert above(point(9, 9), sweep) is None and above(point(1, 9), sweep) is None


def test_only_seeds_of_the_split_are_run(tmp_path: Path):
    options = argparse.Namespace(split="dev", seeds=[0, 20], output=tmp_path)
    with pytest.raises(UserError, match="--seeds 20: not a dev seed of stage3_protocol"):
        recorded("Stage III, frontier", PROTOCOL, options, {}, lambda seed: {})
    options.seeds = [0]
    found = recorded("Stage III, frontier", PROTOCOL, options, {}, lambda seed: {"em": 0.5})
    assert found[0]["em"] == 0.5 and (tmp_path / "bench_frontier_dev.json").exists()
    options.split, options.seeds = "test", [20]
    with pytest.raises(UserError, match=r"stage3_protocol.yaml: test seeds .* with lr=None, not 1.0; choose"):
        recorded("Stage III, frontier", PROTOCOL, options, {"lr": 1.0}, lambda seed: {})
    with pytest.raises(UserError, match="no models of seed 0,3"):
        models_of(tmp_path, [0, 3])


def test_differences_over_seeds():
    assert differences([0.05]) == "+0.050 in one seed"
    assert differences([0.05, 0.07, 0.06]) == "+0.060 [+0.035, +0.085] over 3 seeds"
