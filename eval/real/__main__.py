"""Every strategy on a real model: ``python -m rag_train.eval.real``."""

from __future__ import annotations

import argparse
from pathlib import Path

from rag_train.eval.benchmarks.common import exit_on_user_error
from rag_train.eval.real.recipe import RealRecipe
from rag_train.recipe import load_recipe
from rag_train.working_files import PACKAGE


def seeds(text: str) -> list[int]:
    return [int(seed) for seed in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rag_train.eval.real", description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="override recipe keys: split=dev")
    parser.add_argument("--recipe", type=Path, help="default: recipes/real.yaml, or real_files.yaml with --data")
    parser.add_argument("--data", type=Path, help="folder of released files and corpus.jsonl; default: the atlas")
    parser.add_argument("--seeds", type=seeds, default="0,1,2", help="comma-separated training seeds")
    parser.add_argument("--work", type=Path, default=Path("runs/real"), help="models and answers, which are kept")
    parser.add_argument("--output", type=Path, default=Path("docs/results"), help="directory of the result")
    options = parser.parse_args()
    from rag_train.eval.real.run import run

    with exit_on_user_error():
        default = PACKAGE / "recipes" / ("real_files.yaml" if options.data else "real.yaml")
        recipe = load_recipe(RealRecipe, options.recipe or default, options.overrides)
        run(recipe, options.seeds, options.data, options.work, options.output)


if __name__ == "__main__":
    main()
