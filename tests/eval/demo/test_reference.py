"""The demo's claims over the reference seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paths import ROOT

from rag_train.eval.demo.claims import CLAIMS
from rag_train.eval.demo.reference import Placed, effects, placed, reference
from rag_train.eval.pages.results import load_results, write_report

RESULTS = ROOT / "docs/results"


def test_reference_is_that_of_the_results_file():
    data = load_results(RESULTS / "demo.json")
    assert effects(data.runs) == reference()
    assert reference().keys() == CLAIMS.keys() == {claim.text for claim in data.claims}


def test_three_seeds_do_not_show_what_their_questions_seemed_to_show():
    """H2: with the seed as the unit, two of the five claims are open."""
    found = placed(load_results(RESULTS / "demo.json").runs)
    open_claims = [text for text, claim in found.items() if claim.verdict == "cannot be told apart"]
    assert [text.partition(" ")[2][:9] for text in open_claims] == ["is no les", "II improv"]


@pytest.mark.parametrize(
    ("here", "outside", "verdict", "seeds"),
    [
        (1.5, False, "holds", [1.0, 1.2, 1.1]),
        (9.0, True, "holds", [1.0, 1.2, 1.1]),
        (-1.0, False, "fails", [-1.0, -1.2, -1.1]),
        (0.0, False, "cannot be told apart", [-1.0, 0.0, 2.0]),
    ],
)
def test_a_run_is_placed_among_the_reference_seeds(here: float, outside: bool, verdict: str, seeds: list[float]):
    found = Placed(here, seeds, margin=0.02)
    assert (found.outside, found.verdict) == (outside, verdict)


def test_page_of_one_seed_has_the_verdicts_of_the_reference_seeds(tmp_path: Path):
    data = load_results(RESULTS / "demo.json")
    one = data.model_copy(update={"runs": [run for run in data.runs if run.seeds == [0]]})
    write_report(tmp_path / "demo.html", one)
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert page.count('<svg class="strip"') == 5 and page.count(">cannot be told apart<") == 2
    assert "claims hold over the reference seeds" in page


def test_claims_in_the_atlas_are_not_compared_with_the_mini_world(tmp_path: Path):
    data = load_results(RESULTS / "atlas_dev.json")
    write_report(tmp_path / "atlas.html", data)
    page = (tmp_path / "atlas.html").read_text(encoding="utf-8")
    assert data.claims[0].evidence in page
    assert '<svg class="strip"' not in page and "reference seeds" not in page
