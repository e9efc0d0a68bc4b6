"""Summaries of runs, and their pooling across seeds."""

from __future__ import annotations

import pytest

from rag_train.eval.metrics.summary import RunSummary, pool, summarize
from rag_train.schema import Question, Trajectory


def run(seed: int, right_by_hops: dict[int, list[bool]]) -> RunSummary:
    """A seed's run with the outcome of each question, by its number of hops."""
    rows = [(hops, right) for hops, rights in right_by_hops.items() for right in rights]
    questions = [Question(id=str(i), question="Who?", answers=["A"], hops=hops) for i, (hops, _) in enumerate(rows)]
    answers = [
        Trajectory(question_id=str(i), question="Who?", strategy="rag", answer="A" if right else "B")
        for i, (_, right) in enumerate(rows)
    ]
    return summarize(questions, answers, strategy="rag", seed=seed)


def test_hops_are_pooled_by_their_number():
    """Seeds need not have questions of the same numbers of hops."""
    seeds = [
        run(0, {2: [True, False], 3: [True]}),
        run(1, {2: [True, True], 4: [False]}),
        run(2, {2: [False, False], 3: [False]}),
    ]
    [pooled] = pool(seeds)
    assert {part.name: part.em.mean for part in pooled.parts} == {
        "2 hops": pytest.approx(0.5), "3 hops": 0.5, "4 hops": 0.0
    }  # fmt: skip
    assert pooled.seeds == [0, 1, 2]


def test_counts_of_what_went_wrong_are_pooled():
    """The number of answers that were asked for once more was 0 over several seeds."""
    counts = ("errors", "nothing_found", "unparsed", "cut", "asked_again")
    seeds = [run(seed, {2: [True]}).model_copy(update=dict.fromkeys(counts, seed)) for seed in (1, 3)]
    [pooled] = pool(seeds)
    assert [getattr(pooled, name) for name in counts] == [2.0] * len(counts)
