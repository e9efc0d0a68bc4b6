"""Confidence intervals and tests, against published values and known identities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trajectories import QUESTIONS, RUN

from rag_train.eval.metrics.intervals import across_seeds, bootstrap, mcnemar
from rag_train.eval.metrics.scores import score


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_bootstrap_interval_contains_the_mean(values: list[float]):
    interval = bootstrap(values, resamples=200)
    assert interval.lo - 1e-9 <= interval.mean <= interval.hi + 1e-9
    assert interval == bootstrap(values, resamples=200)


def test_t_interval_and_mcnemar():
    interval = across_seeds([1.0, 2.0, 3.0])
    assert interval.hi - interval.mean == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    first = score(QUESTIONS, RUN)
    assert mcnemar(first, first) == 1.0
