"""The demo's claims over the reference seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.paths import DEMO

from rag_train.eval.demo.claims import CLAIMS, MINI_WORLD_CLAIMS
from rag_train.eval.demo.reference import Placed, effects, reference, verdicts, verdicts_so_far
from rag_train.eval.metrics.intervals import effect_across_seeds
from rag_train.eval.pages.results import load_results, write_report

UNDECIDED = "cannot be told apart"


def test_every_claim_has_an_effect_in_every_seed():
    runs = load_results(DEMO).runs
    found = effects(runs)
    assert verdicts_so_far(runs) == dict.fromkeys(MINI_WORLD_CLAIMS, "open")  # of one seed
    assert found.keys() == reference().keys() == MINI_WORLD_CLAIMS.keys()
    assert {len(values) for values in found.values()} == {1}


def test_a_claim_is_decided_over_seeds_and_among_all_claims():
    """The seed is the unit. With Holm's correction, each claim of a family must be shown more clearly."""
    clear, contrary, uncertain = [0.50, 0.52, 0.51], [-0.50, -0.52, -0.51], [-1.0, 0.0, 2.0]
    texts = list(MINI_WORLD_CLAIMS)
    rest = [uncertain] * 4
    found = verdicts(dict(zip(texts, [clear, clear, contrary, *rest], strict=True)))
    assert list(found.values()) == ["holds", "holds", "fails", *[UNDECIDED] * 4]
    weak = [0.1, 0.5, 0.3, 0.2]
    assert effect_across_seeds(weak).lo > 0
    found = verdicts(dict(zip(texts, [*rest[:2], weak, *[clear] * 4], strict=True)))
    assert found[texts[2]] == UNDECIDED
    within = {texts[3]: [-0.010, -0.011, -0.009]}
    assert CLAIMS[texts[3]].margin == 0.02 and verdicts(within)[texts[3]] == "holds"


@pytest.mark.parametrize(("here", "outside"), [(1.2, False), (9.0, True), (-1.0, True)])
def test_a_run_is_placed_among_the_reference_seeds(here: float, outside: bool):
    found = Placed(here, [1.0, 1.2, 1.1], 0.02, "holds")
    assert found.outside is outside
    line = f"holds: A is better; 3 reference seeds: +1.100 [+0.852, +1.348]; this run: {here:+.3f}"
    assert found.line("A is better") == line + ", which is outside of what they let expect" * outside


def test_page_of_one_seed_has_the_verdicts_of_the_reference_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one = load_results(DEMO)
    seeds = [[0.20, 0.21, 0.19], [0.1, 0.11, 0.1], *[[-1.0, 0.0, 2.0]] * 3, [-0.2, -0.21, -0.2], [0.0, 0.1, -0.3]]
    found = dict(zip(MINI_WORLD_CLAIMS, seeds, strict=True))
    monkeypatch.setattr("rag_train.eval.demo.reference.reference", lambda: found)
    write_report(tmp_path / "demo.html", one)
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert page.count('<svg class="strip"') == 7 and page.count(f">{UNDECIDED}<") == 4
    assert "claims hold over the reference seeds" in page
    monkeypatch.setattr("rag_train.eval.demo.reference.reference", dict)
    write_report(tmp_path / "demo.html", one)
    assert '<svg class="strip"' not in (tmp_path / "demo.html").read_text(encoding="utf-8")


def test_the_demo_in_the_documentation_is_placed_among_the_reference_seeds():
    demo = load_results(DEMO)
    found = demo.placed()
    assert demo.in_mini_world and found.keys() == MINI_WORLD_CLAIMS.keys()
    assert not any(claim.outside for claim in found.values())


def test_claims_in_the_atlas_are_not_compared_with_the_mini_world(tmp_path: Path):
    data = load_results(DEMO).model_copy(update={"in_mini_world": False})
    write_report(tmp_path / "atlas.html", data)
    page = (tmp_path / "atlas.html").read_text(encoding="utf-8")
    assert data.claims[0].evidence in page
    assert '<svg class="strip"' not in page and "reference seeds" not in page
