"""Accuracy against retrievals: Stage III at several prices of a retrieval, earlier models at several thresholds.

For each seed of the mini world's demo, Stage III starts from the model of Stage I and from that of Stage II. All
models answer the same questions. The earlier models are those after the cold start, Stage I and Stage II. A point
of Stage III is compared with the best that they reach at no more retrievals (`above`). What changed is measured by
itself: decisions against the known boundary, and causes of wrong answers (subqueries, reading, stopping). Writes
bench_frontier.json (bench_frontier_dev.json with --split dev).

Stage III comes on top of the earlier stages, with more questions and more compute than Stage II. A difference says
what more training by reinforcement brings, not what reinforcement alone does.

First: rag-train demo --seeds 0
Then:  python -m rag_train.eval.benchmarks.frontier --seeds 0
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rag_train.eval.benchmarks.common import exit_on_user_error, stage3_recipe
from rag_train.eval.benchmarks.stage3 import (
    DEEPRAG,
    PROTOCOL,
    DemoSeed,
    models_of,
    open_seed,
    settings_of,
    stage3_parser,
    trained,
)

if TYPE_CHECKING:
    from rag_train.eval.benchmarks.reporting import Results
    from rag_train.eval.metrics.summary import RunSummary
    from rag_train.training.recipe import TrainRecipe

STARTS = {"stage1": "stage 1", "stage2": "stage 2"}
"""Folders of the models that Stage III starts from, with their names in the tables."""
EARLIER = {"coldstart": "cold start", **STARTS}
"""Folders of the models that Stage III is compared with."""
ALWAYS, NEVER = 0.0, 1.01
THRESHOLDS = {"coldstart": (ALWAYS, NEVER), **dict.fromkeys(STARTS, (ALWAYS, 0.1, 0.3, 0.5, 0.7, 0.9, NEVER))}
"""Probabilities of retrieving from which the earlier models retrieve. The cold start decides at random: other
thresholds would only mix always and never."""


def main() -> None:
    parser = stage3_parser(__doc__, "frontier")
    parser.add_argument("--prices", type=float, nargs="+", default=[0.0, 0.03, 0.1], help="of a retrieval")
    parser.add_argument("--questions", type=int, default=640, help="training questions of Stage III")
    parser.add_argument("--lr", type=float, default=3e-4, help="learning rate of Stage III")
    options = parser.parse_args()

    from rag_train.eval.benchmarks.reporting import differences, recorded
    from rag_train.eval.matrix.tables import cause_table, decision_table, main_table
    from rag_train.eval.metrics.summary import RunSummary, pool
    from rag_train.progress import console

    with exit_on_user_error():
        models = models_of(options.demo, options.seeds, options.split)
        results = recorded(
            "Stage III, frontier",
            PROTOCOL,
            options,
            settings_of(recipe_of(Path(), Path(), price=0)) | {"thresholds": THRESHOLDS},
            lambda seed: asyncio.run(frontier(options, open_seed(models[seed], seed, options))),
            verdict,
        )
    runs = [RunSummary.model_validate(run) for result in results.values() for run in result["runs"]]
    for table in (main_table, decision_table, cause_table):
        console.print(table(pool(runs)))
    for start in STARTS.values():
        by_seed = [result["above"][start] for result in results.values()]
        for stage in by_seed[0]:
            console.print(f"{stage}, above the earlier models: EM {differences([each[stage] for each in by_seed])}")
    console.print(verdict(results))


async def frontier(options: argparse.Namespace, seed: DemoSeed) -> dict[str, Any]:
    """Train and evaluate one seed."""
    from rag_train.files import write_records

    sweep = [
        run
        for folder, name in EARLIER.items()
        for run in await seed.runs(
            seed.models / folder, name, [f"{DEEPRAG},threshold={threshold}" for threshold in THRESHOLDS[folder]]
        )
    ]
    runs = list(sweep)
    write_records(seed.folder / "questions.jsonl", seed.training[: options.questions])
    lifted: dict[str, dict[str, float]] = {name: {} for name in STARTS.values()}
    collapsed: list[str] = []
    for start, name in STARTS.items():
        for price in options.prices:
            stage = f"stage 3 from {name}, price {price}"
            recipe = recipe_of(seed.models / start, seed.folder, price)
            output = seed.folder / f"{start}-{price}-{options.lr:g}"
            model, has_collapsed = trained(replace(recipe, seed=seed.seed, lr=options.lr, output_dir=str(output)))
            [run] = await seed.runs(model, stage)
            lifted[name][stage] = above(run, sweep)
            runs.append(run)
            collapsed += [stage] * has_collapsed
    return {"runs": [run.model_dump(mode="json") for run in runs], "above": lifted, "collapsed": collapsed}


def recipe_of(model: Path, folder: Path, price: float) -> TrainRecipe:
    """Return the recipe of Stage III from ``model`` at a price of a retrieval; see `stage3_recipe`."""
    return stage3_recipe(str(model), folder, price, credit="tree", engine="vllm", branches=2)


def above(run: RunSummary, sweep: Sequence[RunSummary]) -> float:
    """Return the exact match of ``run`` above the best that ``sweep`` reaches at no more retrievals.

    Two points of a sweep, mixed at random by question, reach every point of the line between them. So the sweep
    reaches its upper convex hull. A run with fewer retrievals than any point of the sweep is compared with the one
    that has the fewest.
    """
    import numpy as np

    hull: list[tuple[float, float]] = []
    for point in sorted((point.retrievals.mean, point.em.mean) for point in sweep):
        while hull and (hull[-1][0] == point[0] or (len(hull) > 1 and _is_below(hull[-1], hull[-2], point))):
            hull.pop()
        hull.append(point)
    retrievals, matches = zip(*hull, strict=True)
    best = np.maximum.accumulate(matches)  # where the hull falls, fewer retrievals reach more
    return run.em.mean - float(np.interp(run.retrievals.mean, retrievals, best))


def _is_below(point: tuple[float, float], left: tuple[float, float], right: tuple[float, float]) -> bool:
    """Return whether ``point`` is below the line from ``left`` to ``right``, or on it."""
    rise = (right[1] - left[1]) * (point[0] - left[0])
    return (point[1] - left[1]) * (right[0] - left[0]) <= rise


def verdict(results: Results) -> str:
    """Return the verdict on the protocol's claim about the frontier, in one line."""
    from rag_train.eval.benchmarks.reporting import judged

    name = "stage 3 from stage 2, mean over its prices, EM above the earlier models"
    found = [fmean(result["above"]["stage 2"].values()) for result in results.values()]
    return judged(PROTOCOL, results, {name: found})


if __name__ == "__main__":
    main()
