"""Confidence intervals and tests, against published values and known identities."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trajectories import QUESTIONS, RUN

from rag_train.eval.metrics.intervals import (
    across_seeds,
    bootstrap,
    holm,
    mcnemar,
    share,
    share_across_seeds,
    wilson,
)
from rag_train.eval.metrics.scores import score


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_bootstrap_interval_contains_the_mean(values: list[float]):
    interval = bootstrap(values, resamples=200)
    assert interval.lo - 1e-9 <= interval.mean <= interval.hi + 1e-9
    assert interval == bootstrap(values, resamples=200)


def test_wilson_intervals():
    """Compare with Newcombe 1998, table I, method 3."""
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0 / 20, 20) == pytest.approx((0, 0.1611), abs=1e-4)


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_the_interval_of_a_share_is_wilsons(values: list[float]):
    """0 of 4 had the interval [0, 0] in one place, and [0, 49] in another."""
    interval = share(values)
    assert 0 <= interval.lo <= interval.mean <= interval.hi <= 1 and interval.lo < interval.hi
    assert (interval.lo, interval.hi) == wilson(interval.mean, len(values))


def test_shares_across_seeds_stay_between_0_and_1():
    assert across_seeds([0.0, 0.1]).lo < 0
    interval = share_across_seeds([0.0, 0.1])
    assert (interval.lo, interval.mean) == (0.0, 0.05)
    assert share_across_seeds([1.0, 0.9]).hi == 1.0


def test_t_interval_and_mcnemar():
    interval = across_seeds([1.0, 2.0, 3.0])
    assert interval.hi - interval.mean == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    first = score(QUESTIONS, RUN)
    assert mcnemar(first, first) == 1.0


def test_holms_adjusted_p_values():
    """Each ordered p-value counts once for every hypothesis that is left, and never less than the one before."""
    assert holm([0.01, 0.04, 0.03], 3) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, 0.5], 10) == pytest.approx([0.1, 1.0])
    assert holm([0.5, 0.2]) == pytest.approx([0.5, 0.4])
