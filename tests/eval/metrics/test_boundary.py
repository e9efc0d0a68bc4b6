"""Decisions and the knowledge boundary, against cases counted by hand and known identities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trajectories import COT, QUESTIONS, RUN

from rag_train.eval.metrics.boundary import DecisionCounts, boundary_by_cot, boundary_by_facts, paired_bootstrap_mcc
from rag_train.eval.metrics.intervals import paired_bootstrap
from rag_train.eval.metrics.scores import score
from rag_train.eval.metrics.summary import pool, summarize


def test_counts_decisions_against_both_boundaries():
    run = summarize(QUESTIONS, RUN, strategy="s", cot=COT, known={"fact 0?": True, "fact 1?": False})
    assert run.em.mean == pytest.approx(1 / 3) and run.accuracy.mean == pytest.approx(2 / 3)
    assert run.retrievals.mean == 1.0 and run.retrievals_correct and run.retrievals_correct.mean == 0.0
    assert run.retrieval_counts == {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}
    assert boundary_by_cot(QUESTIONS, RUN, COT) == DecisionCounts(tp=1, fp=0, fn=0, tn=2)
    assert boundary_by_facts(RUN, {"Fact 0": True, "fact 1?": False}) == DecisionCounts(tp=1, fp=0, fn=2, tn=1)
    assert pool([run]) == [run]


def test_difference_in_mcc_is_paired():
    right, wrong = DecisionCounts(tp=1, fp=0, fn=0, tn=1), DecisionCounts(tp=0, fp=1, fn=1, tn=0)
    same = paired_bootstrap_mcc([right, wrong] * 20, [right, wrong] * 20)
    assert (same.mean, same.lo, same.hi) == (0, 0, 0)
    better = paired_bootstrap_mcc([right, wrong] * 20, [right] * 40)
    assert better.mean == pytest.approx(1.0) and 0.5 < better.lo < 1.0


def test_copies_in_one_cluster_do_not_narrow_the_interval():
    right, wrong = DecisionCounts(tp=1, fp=0, fn=0, tn=1), DecisionCounts(tp=0, fp=1, fn=1, tn=0)
    first, second = [right, wrong] * 20, [right, right] * 20
    names = [str(i) for i in range(40)]
    once = paired_bootstrap_mcc(first, second)
    copied = paired_bootstrap_mcc(first * 5, second * 5, names * 5)
    narrow = paired_bootstrap_mcc(first * 5, second * 5)
    assert copied.mean == pytest.approx(once.mean) == pytest.approx(narrow.mean)
    assert narrow.hi - narrow.lo < 0.6 * (copied.hi - copied.lo) < 0.8 * (once.hi - once.lo)
    scores = [score(QUESTIONS, RUN) * 10 for _ in range(2)]
    assert paired_bootstrap(*scores, "em", [s.question_id for s in scores[0]]).mean == 0.0


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2))
def test_mcc_is_the_correlation(decisions: list[tuple[bool, bool]]):
    known, retrieved = map(np.array, zip(*decisions, strict=True))
    counts = DecisionCounts(
        tp=int((known & ~retrieved).sum()),
        fp=int((~known & ~retrieved).sum()),
        fn=int((known & retrieved).sum()),
        tn=int((~known & retrieved).sum()),
    )
    if known.std() and retrieved.std():
        assert counts.mcc == pytest.approx(np.corrcoef(known, ~retrieved)[0, 1])
    else:
        assert counts.mcc == 0.0
