"""What the benchmark of retrieval compares."""

from __future__ import annotations

from rag_train.eval.benchmarks.retrieval import Ranking, alike


def test_passages_that_share_the_last_place_are_alike() -> None:
    ours: Ranking = [("a", 3.0), ("b", 2.0), ("c", 1.0), ("d", 1.0)]
    assert alike(ours, [("b", 9.0), ("a", 8.0), ("e", 1.0), ("c", 1.0)]) == 1
    assert alike(ours, [("a", 3.0), ("b", 2.0), ("c", 1.5), ("e", 1.2)]) == 0.75
    assert alike(ours, [("a", 3.0), ("e", 2.0), ("c", 1.0), ("d", 1.0)]) == 0.75
    assert alike(ours, ours[:2]) == 0.5 and alike(ours, []) == 0 and alike([], []) == 1
