"""The demo's claims over the reference seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paths import ROOT

from rag_train.eval.demo.claims import CLAIMS
from rag_train.eval.demo.reference import Placed, effects, reference, verdicts
from rag_train.eval.metrics.intervals import effect_across_seeds
from rag_train.eval.pages.results import load_results, write_report

RESULTS = ROOT / "docs/results"
UNDECIDED = "cannot be told apart"


def test_reference_is_that_of_the_results_file():
    data = load_results(RESULTS / "demo.json")
    assert effects(data.runs) == reference()
    assert reference().keys() == CLAIMS.keys() == {claim.text for claim in data.claims}


def test_a_claim_is_decided_over_seeds_and_among_all_claims():
    """H2: the seed is the unit. With Holm's correction, each claim of a family must be shown more clearly."""
    clear, contrary, uncertain = [0.50, 0.52, 0.51], [-0.50, -0.52, -0.51], [-1.0, 0.0, 2.0]
    texts = list(CLAIMS)
    found = verdicts(dict(zip(texts, [clear, clear, contrary, uncertain, uncertain], strict=True)))
    assert list(found.values()) == ["holds", "holds", "fails", "cannot be told apart", "cannot be told apart"]
    weak = [0.1, 0.5, 0.3, 0.2]
    assert effect_across_seeds(weak).lo > 0
    found = verdicts(dict(zip(texts, [uncertain, uncertain, weak, clear, clear], strict=True)))
    assert found[texts[2]] == UNDECIDED
    within = {texts[3]: [-0.010, -0.011, -0.009]}
    assert CLAIMS[texts[3]].margin == 0.02 and verdicts(within)[texts[3]] == "holds"


@pytest.mark.parametrize(("here", "outside"), [(1.2, False), (9.0, True), (-1.0, True)])
def test_a_run_is_placed_among_the_reference_seeds(here: float, outside: bool):
    assert Placed(here, [1.0, 1.2, 1.1], 0.02, "holds").outside is outside


def test_page_of_one_seed_has_the_verdicts_of_the_reference_seeds(tmp_path: Path):
    data = load_results(RESULTS / "demo.json")
    one = data.model_copy(update={"runs": [run for run in data.runs if run.seeds == [0]]})
    write_report(tmp_path / "demo.html", one)
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert page.count('<svg class="strip"') == 5 and page.count(f">{UNDECIDED}<") == 2
    assert "claims hold over the reference seeds" in page


def test_claims_in_the_atlas_are_not_compared_with_the_mini_world(tmp_path: Path):
    data = load_results(RESULTS / "atlas_dev.json")
    write_report(tmp_path / "atlas.html", data)
    page = (tmp_path / "atlas.html").read_text(encoding="utf-8")
    assert data.claims[0].evidence in page
    assert '<svg class="strip"' not in page and "reference seeds" not in page
