"""The rules by which claims are decided, and where a run of one seed stands among the reference seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import DEMO

from rag_train.eval.demo.claims import (
    CLAIMS,
    MINI_WORLD_CLAIMS,
    Claim,
    Placed,
    differences,
    p_above,
    p_below,
    reference,
    verdict,
    verdicts,
)
from rag_train.eval.demo.page import write_report
from rag_train.eval.demo.results import load_results
from rag_train.eval.metrics.intervals import across_seeds


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


def test_every_claim_has_a_difference_in_every_seed():
    found = differences(load_results(DEMO).runs, MINI_WORLD_CLAIMS)
    assert found.keys() == reference().keys() == MINI_WORLD_CLAIMS.keys()
    assert {len(values) for values in found.values()} == {1}
    assert {len(values) for values in reference().values()} == {6}


def test_a_claim_is_decided_over_seeds_and_among_all_claims():
    """The seed is the unit. With Holm's correction, each claim of a family must be shown more clearly."""
    clear, contrary, uncertain = [0.50, 0.52, 0.51], [-0.50, -0.52, -0.51], [-1.0, 0.0, 2.0]
    texts = list(MINI_WORLD_CLAIMS)
    rest = [uncertain] * 4
    found = verdicts(dict(zip(texts, [clear, clear, contrary, *rest], strict=True)))
    assert list(found.values()) == ["holds", "holds", "fails", *["cannot be told apart"] * 4]
    weak = [0.1, 0.5, 0.3, 0.2]
    assert across_seeds(weak).lo > 0
    found = verdicts(dict(zip(texts, [*rest[:2], weak, *[clear] * 4], strict=True)))
    assert found[texts[2]] == "cannot be told apart"
    within = {texts[3]: [-0.010, -0.011, -0.009]}
    assert CLAIMS[texts[3]].margin == 0.02 and verdicts(within)[texts[3]] == "holds"


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=10), st.floats(-5, 5))
def test_p_values_agree_with_the_interval(values: list[float], bound: float):
    interval = across_seeds(values)
    if interval.hi - interval.lo > 1e-5 and min(abs(interval.lo - bound), abs(interval.hi - bound)) > 1e-6:
        assert (p_above(values, bound) < 0.025) == (interval.lo > bound)
        assert (p_below(values, bound) < 0.025) == (interval.hi < bound)


def test_seeds_without_variance_have_a_verdict_unless_they_tie():
    assert (p_above([1.0, 1.0], 0), p_above([0.0, 0.0], 0)) == (0, 1)


@pytest.mark.parametrize(("here", "outside"), [(1.2, False), (9.0, True), (-1.0, True)])
def test_a_run_is_placed_among_the_reference_seeds(here: float, outside: bool):
    placed = Placed(here=here, seeds=[1.0, 1.2, 1.1], margin=0.02)
    assert placed.outside is outside
    claim = Claim(text="A is better", verdict="holds", evidence="", placed=placed)
    line = f"holds: A is better; 3 reference seeds: +1.100 [+0.852, +1.348]; this run: {here:+.3f}"
    assert claim.line() == line + ", which is outside of what they let expect" * outside


def test_page_of_one_seed_has_the_verdicts_of_the_reference_seeds(tmp_path: Path):
    one = load_results(DEMO)
    write_report(tmp_path / "demo.html", one)
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert page.count('<div class="strip"') == 7 and page.count(">cannot be told apart<") == 2
    assert "claims hold, over the reference seeds" in page
    several = [claim.model_copy(update={"placed": None}) for claim in one.claims]
    write_report(tmp_path / "demo.html", one.model_copy(update={"claims": several}))
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert one.claims[0].evidence in page
    assert '<div class="strip"' not in page and "reference seeds" not in page
