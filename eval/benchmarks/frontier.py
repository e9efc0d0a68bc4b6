"""Accuracy against retrievals: Stage III at several prices of a retrieval, Stages I and II at several thresholds.

For each seed of the mini world's demo, Stage III starts from the model of Stage I and from that of Stage II. All
models answer the same questions. A point of Stage III is above the sweep of Stage II by the difference of its exact
match to that of the sweep at as many retrievals (`above`). What changed is measured by itself: decisions against
the known boundary, and causes of wrong answers (subqueries, reading, stopping). Writes bench_frontier.json
(bench_frontier_dev.json with --split dev).

First: rag-train demo --seeds 0
Then:  python -m rag_train.eval.benchmarks.frontier --seeds 0
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rag_train.eval.benchmarks.common import exit_on_user_error, stage3_recipe
from rag_train.eval.benchmarks.stage3 import DEEPRAG, PROTOCOL, DemoSeed, models_of, open_seed, stage3_parser

if TYPE_CHECKING:
    from rag_train.eval.metrics.summary import RunSummary

STARTS = {"stage1": "stage 1", "stage2": "stage 2"}
"""Folders of the models that Stage III starts from, with their names in the tables."""
THRESHOLDS = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Probabilities of retrieving from which the models of Stages I and II retrieve."""


def main() -> None:
    parser = stage3_parser(__doc__, "frontier")
    parser.add_argument("--prices", type=float, nargs="+", default=[0.0, 0.05, 0.2, 0.5], help="of a retrieval")
    parser.add_argument("--questions", type=int, default=640, help="training questions of Stage III")
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
    for stage in next(iter(results.values()))["above"]:
        found = [result["above"][stage] for result in results.values()]
        if None in found:
            console.print(f"{stage}: outside the sweep's retrievals")
        else:
            console.print(f"{stage} over Stage II's sweep at as many retrievals: EM {differences(found)}")


async def frontier(options: argparse.Namespace, seed: DemoSeed) -> dict[str, Any]:
    """Train and evaluate one seed."""
    from rag_train.training.run import train

    swept = [f"{DEEPRAG},threshold={threshold}" for threshold in THRESHOLDS]
    sweep = await seed.runs(seed.models / "stage2", "stage 2", swept)
    runs = [*sweep, *await seed.runs(seed.models / "stage1", "stage 1", swept)]
    lifted: dict[str, float | None] = {}
    for start, name in STARTS.items():
        for price in options.prices:
            model, stage = seed.folder / f"{start}-{price}", f"stage 3 from {name}, price {price}"
            recipe = stage3_recipe(
                str(seed.models / start), seed.folder, price, credit="tree", engine="vllm", branches=2
            )
            train(replace(recipe, seed=seed.seed, lr=options.lr, output_dir=str(model)))
            [run] = await seed.runs(model, stage)
            lifted[stage] = above(run, sweep)
            runs.append(run)
    return {"runs": [run.model_dump(mode="json") for run in runs], "above": lifted}


def above(run: RunSummary, sweep: Sequence[RunSummary]) -> float | None:
    """Return the exact match of ``run`` above that of the sweep at as many retrievals, or None outside the sweep.

    Between two points of the sweep, exact match is interpolated.
    """
    import numpy as np

    points = sorted((point.retrievals.mean, point.em.mean) for point in sweep)
    retrievals, matches = zip(*points, strict=True)
    if not retrievals[0] <= run.retrievals.mean <= retrievals[-1]:
        return None
    return run.em.mean - float(np.interp(run.retrievals.mean, retrievals, matches))


if __name__ == "__main__":
    main()
