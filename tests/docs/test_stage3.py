"""Tables and figures of Stage III's comparisons, over results of two seeds."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.paths import ROOT


def seed(shift: float) -> dict[str, Any]:
    """A seed with two thresholds of Stage I, one price of Stage III, and three arms."""
    runs = json.loads((ROOT / "docs/results/demo_seeds.json").read_text())["seeds"]["20"]["runs"]
    [base] = [run for run in runs if (run["strategy"], run["stage"]) == ("deeprag", "stage 1")]
    stage3 = "stage 3 from stage 1, price 0.05"

    def run(strategy: str, stage: str, retrievals: float, em: float) -> dict[str, Any]:
        changed = copy.deepcopy(base) | {"strategy": strategy, "stage": stage}
        changed["retrievals"]["mean"], changed["em"]["mean"] = retrievals, em + shift
        return changed

    start = {"score": 0.3, "em": 0.4, "retrievals": 2.0}
    cost = {"steps": 4, "passes": 2.5, "seconds": 9.0, "tokens": 4e6, "written": 1e6}
    curve = [(n * 1e6, n / 10 + shift) for n in range(1, 5)]
    return {
        "runs": [
            run("deeprag,threshold=0.0", "stage 1", 2.5, 0.45),
            run("deeprag,threshold=0.5", "stage 1", 1.5, 0.42),
            run("deeprag", stage3, 1.4, 0.44),
        ],
        "above": {"stage 1": {stage3: 0.02 + shift}, "stage 2": {}},
        "collapsed": [stage3] if shift else [],
        "arms": {
            "start": start,
            "tree credit": start | cost | {"score": 0.35 + shift, "curve": curve},
            "plain GRPO": start | cost | {"curve": curve},
        },
    }


@pytest.fixture
def stage3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The generator and the figures, over ``two.json`` and ``three.json``."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    results, generator, figures = map(
        importlib.import_module, ("generator.results", "generator.stage3", "figures.stage3")
    )
    (tmp_path / "two.json").write_text(json.dumps({"seeds": {"20": seed(0.0), "21": seed(0.02)}}))
    three = {"20": seed(0.0), "21": seed(0.02), "22": seed(0.04)}
    (tmp_path / "three.json").write_text(json.dumps({"seeds": three}))
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.load.cache_clear()
    yield SimpleNamespace(tables=generator, figures=figures)
    results.load.cache_clear()


def row(table: str, name: str) -> list[str]:
    [found] = [line for line in table.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_tables_have_means_over_seeds_and_each_seed(stage3: SimpleNamespace):
    after = "stage 3 from stage 1, price 0.05"
    _, em, retrievals, above, seeds, collapsed = row(stage3.tables.frontier_table("two"), after)
    assert em.startswith("45.0 [") and retrievals.startswith("1.40") and above.startswith("3.0 [")
    assert (seeds, collapsed) == ("+2.0, +4.0", "1")
    causes, decisions = stage3.tables.stage3_causes("two"), stage3.tables.stage3_decisions("two")
    assert row(causes, "stage 1")[1] == "43.0" and row(causes, after)[1] == "45.0"
    assert row(decisions, "stage 1")[1] == "1.50" and row(decisions, after)[1] == "1.40"
    assert row(stage3.tables.credit_table("two"), "start")[4:] == ["–"] * 5
    assert row(stage3.tables.credit_table("two"), "plain GRPO")[4:] == ["4", "2.5", "9", "4.00", "1.00"]
    assert row(stage3.tables.credit_differences("two"), "tree credit over plain GRPO")[2] == "+0.050, +0.070"


def test_a_curve_is_the_mean_over_seeds_with_an_interval_from_three_on(stage3: SimpleNamespace):
    points = stage3.tables.credit_curves("two", "plain GRPO", points=4)
    assert [point.tokens for point in points] == [1e6, 2e6, 3e6, 4e6]
    assert [point.mean for point in points] == pytest.approx([0.11, 0.21, 0.31, 0.41])
    assert all(point.lo == point.mean == point.hi for point in points)  # two seeds are too few
    points = stage3.tables.credit_curves("three", "plain GRPO", points=4)
    assert all(point.lo < point.mean < point.hi for point in points)


def test_figures_have_a_mark_for_each_point(stage3: SimpleNamespace):
    drawn = stage3.figures.draw_frontier("two").inline()
    assert drawn.count("<circle") == 1 + 2 + 1 and ">0.05</text>" in drawn  # the key, thresholds, a price
    assert "plain GRPO" in stage3.figures.draw_rewards("two").inline()
