"""Tree credit compared with plain GRPO at the same number of engine tokens.

Both start from a Stage I model of the mini world, with the same rewards, questions and seeds. A tree step costs
more engine tokens, so plain GRPO takes more steps, and the rewards are compared at equal totals of tokens read and
written. The rewards are those of the sampled rollouts. Writes bench_credit.json.

Example: python -m rag_train.eval.benchmarks.credit --model runs/demo/seed0-*/stage1 --price 0.1
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from rag_train.eval.benchmarks.common import benchmark_parser, exit_on_user_error, mini_world, stage3_recipe
from rag_train.files import write_records
from rag_train.progress import console
from rag_train.provenance import save_result
from rag_train.retrieval.index.bm25_build import build_bm25
from rag_train.training.recipe import TrainRecipe
from rag_train.training.run import train
from rag_train.training.tracking import METRICS

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the engine tokens at which rewards are compared."""
WINDOW = 0.1
"""A reward is the mean over the steps in this share of all tokens before the point."""

Curve = list[tuple[float, float]]
"""Engine tokens so far and mean reward, for each step."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", required=True, help="Stage I model of the mini world")
    parser.add_argument("--price", type=float, default=0.1, help="price of a retrieval")
    parser.add_argument("--questions", type=int, default=400, help="training questions of a tree run")
    parser.add_argument("--branches", type=int, default=2, help="rollouts of each decision")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path("runs/credit"), help="working directory; runs are kept")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    world, _, questions = mini_world()
    write_records(options.work / "questions.jsonl", questions[: options.questions])
    build_bm25(world.corpus(), options.work / "index")
    recipe = stage3_recipe(options.model, options.work, options.price, branches=options.branches)
    with exit_on_user_error():
        seeds = [compare(replace(recipe, seed=seed), options.work / f"seed{seed}") for seed in options.seeds]
    for share in SHARES:
        tree, plain = (fmean(seed[credit][str(share)] for seed in seeds) for credit in ("tree", "trajectory"))
        console.print(f"{share:.0%} of the tokens: reward {tree:.3f} with tree credit, {plain:.3f} with plain GRPO")
    save_result(options.output / "bench_credit.json", {"price": options.price, "seeds": seeds})


def compare(recipe: TrainRecipe, folder: Path) -> dict[str, dict[str, float]]:
    """Train both ways, and return the rewards of each at `SHARES` of the tokens that both of them spent."""
    section, curves = recipe.rl, {}
    assert section is not None
    for credit, epochs in (
        ("tree", 1),
        ("trajectory", 1 + 2 * section.branches),
    ):  # no branch costs more than a rollout
        output = folder / credit
        train(replace(recipe, output_dir=str(output), epochs=epochs, rl=replace(section, credit=credit)))
        curves[credit] = read_curve(output / METRICS)
    shared = min(curve[-1][0] for curve in curves.values())
    return {
        credit: {str(share): reward_at(curve, share * shared, WINDOW * shared) for share in SHARES}
        for credit, curve in curves.items()
    }


def read_curve(path: Path) -> Curve:
    """Return the curve of a run that logged every step."""
    rows = [row for row in map(json.loads, path.read_text().splitlines()) if "reward" in row]
    spent = accumulate(row["engine/read"] + row["engine/written"] for row in rows)
    return [(tokens, row["reward"]) for tokens, row in zip(spent, rows, strict=True)]


def reward_at(curve: Sequence[tuple[float, float]], tokens: float, window: float) -> float:
    """Return the mean reward of the steps within ``window`` before ``tokens``, or that of the last step before."""
    before = [(at, reward) for at, reward in curve if at <= tokens] or list(curve[:1])
    return fmean([reward for at, reward in before if at > tokens - window] or [before[-1][1]])


if __name__ == "__main__":
    main()
