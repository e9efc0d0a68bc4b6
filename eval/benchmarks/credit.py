"""Tree credit compared with plain GRPO at the same number of engine tokens.

Both start from the demo's Stage I model of the same seed, with the same rewards, on questions that no stage has
seen. A step with tree credit costs more engine tokens. Plain GRPO spends them on more steps, in more passes over
the questions, and stops when it has read and written as many tokens. The models then answer the same questions
greedily. Writes bench_credit.json (bench_credit_dev.json with --split dev).

Equal engine tokens are not equal cost: a token that is written costs more than one that is read, and a step of
training has a cost of its own. Written tokens and seconds are therefore recorded, too.

Each arm is also compared with the model that it starts from. Stage III comes on top of that model's training, with
more questions and more compute than Stage II. This difference says what more training by reinforcement brings, not
what reinforcement alone does.

The tree run is the one of the frontier benchmark from Stage I at the same price, if that has been made.

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
from rag_train.eval.benchmarks.common import exit_on_user_error
from rag_train.eval.benchmarks.stage3 import (
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

START, TREE, PLAIN = "start", "tree credit", "plain GRPO"
EPOCHS = 10
"""Passes over the questions of a run that its token budget ends before."""


def main() -> None:
    parser = stage3_parser(__doc__)
    parser.add_argument("--price", type=float, default=0.05, help="price of a retrieval")
    parser.add_argument("--plain-lr", type=float, default=1e-3, help="learning rate of plain GRPO")
    options = parser.parse_args()

    from rag_train.eval.benchmarks.reporting import differences, recorded
    from rag_train.progress import console

    with exit_on_user_error():
        models = models_of(options.demo, options.seeds, options.split)
        results = recorded(
            "Stage III, credit",
            PROTOCOL,
            options,
            settings_of(tree_recipe(Path(), Path(), price=0)) | {"epochs": EPOCHS},
            lambda seed: compare(options, open_seed(models[seed], seed, options)),
            verdict,
        )
    for arm in (TREE, PLAIN):
        console.print(f"{arm} over the start: score {differences(over(results, arm, START))}")
    console.print(verdict(results))


def compare(options: argparse.Namespace, seed: DemoSeed) -> dict[str, Any]:
    """Train both runs of a seed, and let their models answer."""
    from rag_train.files import write_records
    from rag_train.training.result import METRICS

    start = seed.models / "stage1"
    tree = seed.recipe(start, options.price, options)
    assert tree.rl is not None and tree.global_batch is not None
    model, has_collapsed = trained(tree)
    cost = spent(Path(tree.output_dir) / METRICS)
    arms = {
        START: scored(options, seed, start),
        TREE: scored(options, seed, model) | cost | {"collapsed": has_collapsed},
    }
    # Of a tree run that collapsed, what all of its steps would have cost.
    steps = options.questions * tree.rl.group // tree.global_batch
    budget = round(cost["tokens"] * steps / cost["steps"])
    every = seed.folder / "all.jsonl"
    write_records(every, seed.training)
    # Plain GRPO is planned for more steps than its budget allows. Its learning rate rises in as many steps as that
    # of tree credit.
    share = options.questions / (EPOCHS * len(seed.training))
    plain = replace(
        tree,
        data=every,
        epochs=EPOCHS,
        warmup_ratio=share * tree.warmup_ratio,
        lr=options.plain_lr,
        rl=replace(tree.rl, credit="trajectory", budget=budget),
        output_dir=str(seed.folder / f"plain-{options.price:g}-{options.plain_lr:g}-{budget}-tokens"),
    )
    model, has_collapsed = trained(plain)
    cost = spent(Path(plain.output_dir) / METRICS)
    if cost["tokens"] < budget and not has_collapsed:
        raise UserError(f"{PLAIN}: {cost['tokens']:,} of {budget:,} tokens in {EPOCHS} epochs; raise EPOCHS")
    arms[PLAIN] = scored(options, seed, model) | cost | {"collapsed": has_collapsed}
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
        "passes": rows[-1]["epoch"],
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

    return judged(PROTOCOL, results, {f"score, {TREE} over {PLAIN}": over(results, TREE, PLAIN)})


if __name__ == "__main__":
    main()
