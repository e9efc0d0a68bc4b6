"""Stage III against the sweep of the earlier models."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.eval.benchmarks import frontier as benchmark
from rag_train.eval.benchmarks.frontier import THRESHOLDS, above, frontier, verdict
from rag_train.eval.benchmarks.stage3 import PROTOCOL, DemoSeed
from rag_train.eval.papers.protocol import seeds_of

Point = tuple[float, float]


def run(point: Point) -> Any:
    """A run with these retrievals and this exact match, in place of a `RunSummary`, which is slow to make."""
    retrievals, em = (SimpleNamespace(mean=value) for value in point)
    return SimpleNamespace(retrievals=retrievals, em=em, model_dump=lambda mode: {})


def lifted(point: Point, sweep: list[Point]) -> float:
    return above(run(point), [run(each) for each in sweep])


def test_a_point_is_compared_with_the_best_at_no_more_retrievals():
    sweep = [(0.8, 0.6), (0.2, 0.2), (0.4, 0.5), (0.4, 0.3), (0.5, 0.5), (0.7, 0.1)]
    assert lifted((0.3, 0.4), sweep) == pytest.approx(0.4 - 0.35)
    assert lifted((0.6, 0.6), sweep) == pytest.approx(0.6 - 0.55)  # the points between are below the line
    assert lifted((0.8, 0.5), sweep) == pytest.approx(-0.1)
    assert lifted((0.9, 0.7), sweep) == pytest.approx(0.1)
    assert lifted((0.1, 0.3), sweep) == pytest.approx(0.1)


def test_a_dominated_point_is_not_above_where_the_sweep_falls():
    assert lifted((0.7, 0.5), [(0.2, 0.6), (0.9, 0.3)]) == pytest.approx(-0.1)


POINT = st.tuples(st.integers(0, 20).map(lambda n: n / 10), st.integers(0, 20).map(lambda n: n / 20))


@given(POINT, st.lists(POINT, min_size=1, max_size=12))
def test_the_best_is_a_point_or_a_mixture_of_two(point: Point, sweep: list[Point]):
    at, em = point
    fewest = min(retrievals for retrievals, _ in sweep)
    best = [right for retrievals, right in sweep if retrievals <= max(at, fewest)]
    best += [
        right + (other - right) * (at - left) / (far - left)
        for left, right in sweep
        for far, other in sweep
        if left < at < far
    ]
    assert lifted(point, sweep) == pytest.approx(em - max(best))


def test_the_cold_start_is_swept_and_stage_3_starts_from_the_later_models(tmp_path: Path, monkeypatch):
    """The second training collapses, and is measured at its checkpoint."""
    asked: list[tuple[Path, str]] = []
    recipes = []

    class Seed(DemoSeed):
        def __init__(self):
            self.seed, self.models, self.folder, self.training = 10, Path("demo"), tmp_path, []

        async def runs(self, model: Path, stage: str, strategies: Any = ("deeprag",)) -> list[Any]:
            asked.append((model, stage))
            return [run((1.0, 0.7 if stage.startswith("stage 3") else 0.5))] * len(strategies)

    def trained(recipe: Any) -> tuple[Path, bool]:
        recipes.append(recipe)
        return Path(recipe.output_dir), len(recipes) == 2

    monkeypatch.setattr(benchmark, "trained", trained)
    options = argparse.Namespace(prices=[0.0, 0.1], lr=3e-4, questions=1)
    found = asyncio.run(frontier(options, Seed()))
    assert [str(model) for model, _ in asked[:3]] == ["demo/coldstart", "demo/stage1", "demo/stage2"]
    assert [recipe.model for recipe in recipes] == ["demo/stage1"] * 2 + ["demo/stage2"] * 2
    assert [Path(recipe.output_dir).name for recipe in recipes[:2]] == ["stage1-0-0.0003", "stage1-0.1-0.0003"]
    assert len(found["runs"]) == sum(map(len, THRESHOLDS.values())) + 4
    assert found["above"]["stage 2"] == {
        f"stage 3 from stage 2, price {price}": pytest.approx(0.2) for price in (0.0, 0.1)
    }
    assert found["collapsed"] == ["stage 3 from stage 1, price 0.1"]


def test_the_verdict_is_about_the_mean_over_the_prices_from_stage_2():
    tests = seeds_of(PROTOCOL, "test")
    results = {
        seed: {"above": {"stage 1": {"a": -1.0, "b": -1.0}, "stage 2": {"a": 0.1 + seed / 1e4, "b": -0.02}}}
        for seed in tests
    }
    assert verdict(results).startswith("holds; seeds 20, 21, 22, 23, 24, 25; stage 3 from stage 2, mean over its")
    assert "EM above the earlier models: +0.041 [+0.041, +0.041] over 6 seeds" in verdict(results)
    del results[tests[0]]
    assert verdict(results).startswith("open; seeds 21, 22, 23, 24, 25; ")
