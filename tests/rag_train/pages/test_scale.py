"""Scales of plots: round ticks inside of the axis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.pages.scale import Choices, Scale, round_ends


@given(st.lists(st.floats(-1e6, 1e6).map(lambda value: round(value, 3)), min_size=1, max_size=9))
def test_round_ends_hold_all_values_and_a_few_ticks(values: list[float]):
    lo, hi = round_ends(values)
    assert lo - 1e-6 <= min(values) <= max(values) <= hi + 1e-6
    ticks = Scale(lo, hi, 300, 0).ticks()
    places = [place for place, _ in ticks]
    assert 3 <= len(ticks) <= 13 and places == sorted(places, reverse=True) and 0 <= places[-1] <= places[0] <= 300


@given(st.floats(1e-9, 1e6), st.floats(1.01, 1e9))
def test_logarithmic_ticks_are_few_and_on_the_axis(lo: float, ratio: float):
    ticks = Scale(lo, lo * ratio, 0, 100, log=True).ticks()
    places = [place for place, _ in ticks]
    assert len(ticks) >= 2 and places == sorted(places) and places[0] >= 0 and places[-1] <= 100


def test_labels():
    learning_rates = Scale(5e-7, 5e-5, 0, 100, log=True).ticks()
    assert [label for _, label in learning_rates] == ["5e-07", "1e-06", "5e-06", "1e-05", "5e-05"]
    assert Choices([8, "a", None], 0, 90).ticks() == [(15, "8"), (45, "a"), (75, "null")]
    assert Scale(0, 100, 0, 1)(50) == pytest.approx(0.5)
