"""Tree credit compared with plain GRPO at the same number of engine tokens.

Both start from the demo's Stage I model of the same seed, with the same rewards, on questions that no stage has
seen. A tree step costs more engine tokens. Plain GRPO spends them on more steps, with more questions and several
passes over them, or on larger groups in about as many steps, and stops when it has read and written as many tokens
as the tree run. The models then answer the same questions greedily. Writes bench_credit.json (bench_credit_dev.json
with --split dev).

First: rag-train demo --seeds 0
Then:  python -m rag_train.eval.benchmarks.credit --seeds 0
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.eval.benchmarks.common import exit_on_user_error, stage3_recipe
from rag_train.eval.benchmarks.stage3 import PROTOCOL, DemoSeed, models_of, open_seed, stage3_parser

TREE, STEPS, GROUPS = "tree credit", "plain GRPO, more steps", "plain GRPO, larger groups"
EPOCHS = 10
"""Passes over the questions of a run that its token budget ends before."""
WIDER = 3
"""Size of the larger groups, in groups of the other runs."""

Curve = list[tuple[float, float]]
"""Engine tokens so far and mean reward of the sampled rollouts, for each step."""


def main() -> None:
    parser = stage3_parser(__doc__, "credit")
    parser.add_argument("--price", type=float, default=0.1, help="price of a retrieval")
    parser.add_argument("--questions", type=int, default=400, help="training questions of the tree run")
    parser.add_argument(
        "--lrs",
        type=float,
        nargs=3,
        default=[1e-4] * 3,
        metavar=("TREE", "STEPS", "GROUPS"),
        help="learning rates of tree credit, of plain GRPO with more steps, and of plain GRPO with larger groups",
    )
    parser.add_argument("--branches", type=int, default=2, help="rollouts of each decision")
    options = parser.parse_args()

    from rag_train.eval.benchmarks.reporting import differences, recorded
    from rag_train.progress import console

    names = ("price", "questions", "branches", "lrs", "split")
    settings = {name: getattr(options, name) for name in names}
    with exit_on_user_error():
        models = models_of(options.demo, options.seeds)
        results = recorded(
            "Stage III, credit",
            PROTOCOL,
            options,
            settings,
            lambda seed: compare(
                options, open_seed(models[seed], seed, options.work, options.split, options.questions)
            ),
        )
    for plain in (STEPS, GROUPS):
        found = [result["arms"][TREE]["score"] - result["arms"][plain]["score"] for result in results.values()]
        console.print(f"{TREE} over {plain}: reward {differences(found)}")


def compare(options: argparse.Namespace, seed: DemoSeed) -> dict[str, Any]:
    """Train the three runs of a seed, and let their models answer."""
    from rag_train.files import write_records
    from rag_train.training.recipe import RLRecipe
    from rag_train.training.result import METRICS
    from rag_train.training.run import train

    start = seed.models / "stage1"
    recipe = stage3_recipe(str(start), seed.folder, options.price, branches=options.branches, engine="vllm")
    recipe = replace(recipe, seed=seed.seed)
    section = recipe.rl or RLRecipe(index="")
    few = seed.folder / "few.jsonl"
    write_records(few, seed.training[: options.questions])
    write_records(recipe.data, seed.training)
    plain = replace(recipe, epochs=EPOCHS, rl=replace(section, credit="trajectory"))
    wider = replace(section, credit="trajectory", group=WIDER * section.group)
    runs = {
        TREE: replace(recipe, data=few, rl=replace(section, credit="tree")),
        STEPS: plain,
        GROUPS: replace(plain, global_batch=WIDER * (recipe.global_batch or 0), rl=wider),
    }
    arms: dict[str, Any] = {"start": scored(options, seed, start)}
    budget = None
    for (name, run), lr in zip(runs.items(), options.lrs, strict=True):
        output = seed.folder / name.replace(",", "").replace(" ", "-")
        assert run.rl is not None
        result = train(replace(run, lr=lr, output_dir=str(output), rl=replace(run.rl, budget=budget)))
        curve = read_curve(output / METRICS)
        if budget and curve[-1][0] < budget:
            raise UserError(f"{name}: {curve[-1][0]:,} of {budget:,} tokens in {EPOCHS} epochs; raise EPOCHS")
        budget = budget or round(curve[-1][0])
        arms[name] = scored(options, seed, output) | {
            "steps": result.steps,
            "training_seconds": result.seconds,
            "tokens": curve[-1][0],
            "curve": curve,
        }
    return {"arms": arms}


def scored(options: argparse.Namespace, seed: DemoSeed, model: Path) -> dict[str, float]:
    """Return exact match and retrievals of a model's greedy answers, and the reward that they would have earned."""
    [run] = asyncio.run(seed.runs(model, model.name))
    em, retrievals = run.em.mean, run.retrievals.mean
    return {"em": em, "retrievals": retrievals, "score": em - options.price * retrievals}


def read_curve(path: Path) -> Curve:
    """Return the curve of a run that logged every step."""
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if "reward" in row]
    spent = accumulate(row["engine/read"] + row["engine/written"] for row in rows)
    return [(tokens, row["reward"]) for tokens, row in zip(spent, rows, strict=True)]


if __name__ == "__main__":
    main()
