"""Tree credit compared with plain GRPO at the same number of engine tokens.

Both start from the demo's Stage I model of the same seed, with the same rewards, on questions that no stage has
seen. A tree step costs more engine tokens. Plain GRPO spends them on more steps, with more questions and several
passes over them, or on larger groups in about as many steps, and stops when it has read and written as many tokens
as the tree run. The models then answer the same questions greedily. Writes bench_credit.json (bench_credit_dev.json
with --split dev).

Equal engine tokens are not equal cost: a token that is written costs more than one that is read, and a step of
training has a cost of its own. Written tokens and seconds are therefore recorded, too.

Each arm is also compared with the model that it starts from. Stage III comes on top of that model's training, with
more questions and more compute than Stage II. This difference says what more training by reinforcement brings, not
what reinforcement alone does.

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
from typing import TYPE_CHECKING, Any

from rag_train.errors import UserError
from rag_train.eval.benchmarks.common import exit_on_user_error, stage3_recipe
from rag_train.eval.benchmarks.stage3 import (
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
    from rag_train.training.recipe import TrainRecipe

START = "start"
TREE, STEPS, GROUPS = "tree credit", "plain GRPO, more steps", "plain GRPO, larger groups"
EPOCHS = 10
"""Passes over the questions of a run that its token budget ends before."""
WIDER = 3
"""Size of the larger groups, in groups of the other runs."""


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

    with exit_on_user_error():
        models = models_of(options.demo, options.seeds, options.split)
        results = recorded(
            "Stage III, credit",
            PROTOCOL,
            options,
            settings_of(tree_recipe(options, Path(), Path())) | {"epochs": EPOCHS, "wider": WIDER},
            lambda seed: compare(options, open_seed(models[seed], seed, options)),
            verdict,
        )
    for arm in (TREE, STEPS, GROUPS):
        console.print(f"{arm} over the start: score {differences(over(results, arm, START))}")
    console.print(verdict(results))


def tree_recipe(options: argparse.Namespace, model: Path, folder: Path) -> TrainRecipe:
    """Return the recipe of tree credit from ``model``; see `stage3_recipe`."""
    return stage3_recipe(str(model), folder, options.price, credit="tree", branches=options.branches, engine="vllm")


def compare(options: argparse.Namespace, seed: DemoSeed) -> dict[str, Any]:
    """Train the three runs of a seed, and let their models answer."""
    from rag_train.files import write_records
    from rag_train.training.result import METRICS

    start = seed.models / "stage1"
    tree = replace(tree_recipe(options, start, seed.folder), seed=seed.seed)
    assert tree.rl is not None and tree.global_batch is not None
    few = seed.folder / "few.jsonl"
    write_records(few, seed.training[: options.questions])
    write_records(tree.data, seed.training)
    # Plain GRPO is planned for more steps than its budget allows. Its learning rate rises in as many steps as that
    # of tree credit.
    share = options.questions / (EPOCHS * len(seed.training))
    plain = replace(
        tree, epochs=EPOCHS, warmup_ratio=share * tree.warmup_ratio, rl=replace(tree.rl, credit="trajectory")
    )
    wider = replace(tree.rl, credit="trajectory", group=WIDER * tree.rl.group)
    runs = {
        TREE: replace(tree, data=few),
        STEPS: plain,
        GROUPS: replace(plain, global_batch=WIDER * tree.global_batch, rl=wider),
    }
    arms: dict[str, Any] = {START: scored(options, seed, start)}
    budget = None
    for (name, run), lr in zip(runs.items(), options.lrs, strict=True):
        folder = f"{name.replace(',', '').replace(' ', '-')}-{lr:g}" + (f"-{budget}-tokens" if budget else "")
        output = seed.folder / folder
        assert run.rl is not None
        model, has_collapsed = trained(
            replace(run, lr=lr, output_dir=str(output), rl=replace(run.rl, budget=budget))
        )
        cost = spent(output / METRICS)
        if budget and not has_collapsed and cost["tokens"] < budget:
            raise UserError(f"{name}: {cost['tokens']:,} of {budget:,} tokens in {EPOCHS} epochs; raise EPOCHS")
        if budget is None:  # of a tree run that collapsed, what all of its steps would have cost
            steps = options.questions * tree.rl.group // tree.global_batch
            budget = round(cost["tokens"] * steps / cost["steps"])
        arms[name] = scored(options, seed, model) | cost | {"collapsed": has_collapsed}
    return {"arms": arms}


def scored(options: argparse.Namespace, seed: DemoSeed, model: Path) -> dict[str, float]:
    """Return exact match and retrievals of a model's greedy answers, and their score.

    The score is the exact match minus the price of the retrievals: the reward without the part for the format.
    """
    [run] = asyncio.run(seed.runs(model, model.name))
    em, retrievals = run.em.mean, run.retrievals.mean
    return {"em": em, "retrievals": retrievals, "score": em - options.price * retrievals}


def spent(path: Path) -> dict[str, Any]:
    """Return what a run that logged every step has cost, and its curve.

    The curve has the engine tokens so far and the mean reward of the sampled rollouts, for each step.
    """
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if "reward" in row]
    tokens = list(accumulate(row["engine/read"] + row["engine/written"] for row in rows))
    return {
        "steps": len(rows),
        "tokens": tokens[-1],
        "written": sum(row["engine/written"] for row in rows),
        "seconds": sum(row["step_time"] for row in rows),
        "curve": [(so_far, row["reward"]) for so_far, row in zip(tokens, rows, strict=True)],
    }


def over(results: Results, arm: str, other: str) -> list[float]:
    """Return by how much the score of an arm exceeds that of another one in each seed."""
    return [result["arms"][arm]["score"] - result["arms"][other]["score"] for result in results.values()]


def verdict(results: Results) -> str:
    """Return the verdict on the protocol's claim about credit, in one line."""
    from rag_train.eval.benchmarks.reporting import judged

    found = {f"score, {TREE} over {arm}": over(results, TREE, arm) for arm in (STEPS, GROUPS)}
    return judged(PROTOCOL, results, found)


if __name__ == "__main__":
    main()
