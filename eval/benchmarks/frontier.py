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
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rag_train.eval.benchmarks.common import exit_on_user_error
from rag_train.eval.benchmarks.stage3 import (
    DEEPRAG,
    PROTOCOL,
    DemoSeed,
    models_of,
    open_seed,
    settings_of,
    stage3_parser,
    trained,
    tree_recipe,
)

if TYPE_CHECKING:
    from rag_train.eval.benchmarks.reporting import Results
    from rag_train.eval.metrics.summary import RunSummary

STARTS = {"stage1": "stage 1", "stage2": "stage 2"}
"""Folders of the models that Stage III starts from, with their names in the tables."""
EARLIER = {"coldstart": "cold start", **STARTS}
"""Folders of the models that Stage III is compared with."""
ALWAYS, NEVER = 0.0, 1.01
THRESHOLDS = {"coldstart": (ALWAYS, NEVER), **dict.fromkeys(STARTS, (ALWAYS, 0.1, 0.3, 0.5, 0.7, 0.9, NEVER))}
"""Probabilities of retrieving from which the earlier models retrieve. The cold start decides at random: other
thresholds would only mix always and never."""


def main() -> None:
    parser = stage3_parser(__doc__)
    parser.add_argument("--prices", type=float, nargs="+", default=[0.0, 0.05, 0.2], help="of a retrieval")
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
            settings_of(tree_recipe(Path(), Path(), price=0)) | {"thresholds": THRESHOLDS},
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
    sweep = [
        run
        for folder, name in EARLIER.items()
        for run in await seed.runs(
            seed.models / folder, name, [f"{DEEPRAG},threshold={threshold}" for threshold in THRESHOLDS[folder]]
        )
    ]
    runs = list(sweep)
    lifted: dict[str, dict[str, float]] = {name: {} for name in STARTS.values()}
    collapsed: list[str] = []
    for start, name in STARTS.items():
        for price in options.prices:
            stage = f"stage 3 from {name}, price {price}"
            model, has_collapsed = trained(seed.recipe(seed.models / start, price, options))
            [run] = await seed.runs(model, stage)
            lifted[name][stage] = above(run, sweep)
            runs.append(run)
            collapsed += [stage] * has_collapsed
    return {"runs": [run.model_dump(mode="json") for run in runs], "above": lifted, "collapsed": collapsed}


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
