"""Accuracy against retrievals: Stage III at several prices of a retrieval, Stages I and II at several thresholds.

For each seed of the mini world's demo, Stage III starts from the model of Stage I and from that of Stage II. All
models answer the same questions. A point of Stage III is compared with what the models of Stages I and II reach at
as many retrievals (`above`). What changed is measured by itself: decisions against the known boundary, and causes
of wrong answers (subqueries, reading, stopping). Writes bench_frontier.json (bench_frontier_dev.json with --split
dev).

First: rag-train demo --seeds 0
Then:  python -m rag_train.eval.benchmarks.frontier --seeds 0
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rag_train.eval.benchmarks.common import exit_on_user_error, stage3_recipe
from rag_train.eval.benchmarks.stage3 import DEEPRAG, PROTOCOL, DemoSeed, models_of, open_seed, stage3_parser

if TYPE_CHECKING:
    from rag_train.eval.metrics.summary import RunSummary

STARTS = {"stage1": "stage 1", "stage2": "stage 2"}
"""Folders of the models that Stage III starts from, with their names in the tables."""
THRESHOLDS = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.01)
"""Probabilities of retrieving from which the models of Stages I and II retrieve: from always to never."""


def main() -> None:
    parser = stage3_parser(__doc__, "frontier")
    parser.add_argument("--prices", type=float, nargs="+", default=[0.0, 0.05, 0.2, 0.5], help="of a retrieval")
    parser.add_argument("--questions", type=int, default=640, help="training questions of Stage III")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate of Stage III")
    options = parser.parse_args()

    from rag_train.eval.benchmarks.reporting import differences, recorded
    from rag_train.eval.matrix.tables import cause_table, decision_table, main_table
    from rag_train.eval.metrics.summary import RunSummary, pool
    from rag_train.progress import console

    settings = {name: getattr(options, name) for name in ("prices", "questions", "lr", "split")}
    with exit_on_user_error():
        models = models_of(options.demo, options.seeds)
        results = recorded(
            "Stage III, frontier",
            PROTOCOL,
            options,
            settings,
            lambda seed: asyncio.run(
                frontier(options, open_seed(models[seed], seed, options.work, options.split, options.questions))
            ),
        )
    runs = [RunSummary.model_validate(run) for result in results.values() for run in result["runs"]]
    for table in (main_table, decision_table, cause_table):
        console.print(table(pool(runs)))
    for start in STARTS.values():
        by_seed = [result["above"][start] for result in results.values()]
        for stage in by_seed[0]:
            inside = [lifted[stage] for lifted in by_seed if lifted[stage] is not None]
            told = f"EM {differences(inside)}" if inside else "no seed"
            console.print(f"{stage}, over Stages I and II: {told}; {len(by_seed) - len(inside)} seeds outside")
        within = ([value for value in lifted.values() if value is not None] for lifted in by_seed)
        if means := [fmean(values) for values in within if values]:
            console.print(f"stage 3 from {start}, mean over its prices: EM {differences(means)}")


async def frontier(options: argparse.Namespace, seed: DemoSeed) -> dict[str, Any]:
    """Train and evaluate one seed."""
    from rag_train.files import write_records
    from rag_train.training.run import train

    swept = [f"{DEEPRAG},threshold={threshold}" for threshold in THRESHOLDS]
    sweep = [run for folder, name in STARTS.items() for run in await seed.runs(seed.models / folder, name, swept)]
    runs = list(sweep)
    write_records(seed.folder / "questions.jsonl", seed.training[: options.questions])
    lifted: dict[str, dict[str, float | None]] = {name: {} for name in STARTS.values()}
    for start, name in STARTS.items():
        for price in options.prices:
            model, stage = seed.folder / f"{start}-{price}", f"stage 3 from {name}, price {price}"
            recipe = stage3_recipe(
                str(seed.models / start), seed.folder, price, credit="tree", engine="vllm", branches=2
            )
            train(replace(recipe, seed=seed.seed, lr=options.lr, output_dir=str(model)))
            [run] = await seed.runs(model, stage)
            lifted[name][stage] = above(run, sweep)
            runs.append(run)
    return {"runs": [run.model_dump(mode="json") for run in runs], "above": lifted}


def above(run: RunSummary, sweep: Sequence[RunSummary]) -> float | None:
    """Return the exact match of ``run`` above what ``sweep`` reaches at as many retrievals, or None outside it.

    Two points of a sweep, mixed at random by question, reach every point of the line between them. So the sweep
    reaches its upper convex hull.
    """
    import numpy as np

    points = sorted((point.retrievals.mean, point.em.mean) for point in sweep)
    if not points[0][0] <= run.retrievals.mean <= points[-1][0]:
        return None
    hull: list[tuple[float, float]] = []
    for point in points:
        while hull and (hull[-1][0] == point[0] or (len(hull) > 1 and _is_below(hull[-1], hull[-2], point))):
            hull.pop()
        hull.append(point)
    retrievals, matches = zip(*hull, strict=True)
    return run.em.mean - float(np.interp(run.retrievals.mean, retrievals, matches))


def _is_below(point: tuple[float, float], left: tuple[float, float], right: tuple[float, float]) -> bool:
    """Return whether ``point`` is below the line from ``left`` to ``right``, or on it."""
    rise = (right[1] - left[1]) * (point[0] - left[0])
    return (point[1] - left[1]) * (right[0] - left[0]) <= rise


if __name__ == "__main__":
    main()
