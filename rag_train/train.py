"""The training command for launchers; `rag-train train` runs the same training.

python -m rag_train.train recipes/deeprag_sft.yaml data=sft.jsonl output_dir=runs/sft
accelerate launch --config_file launch/accelerate/zero3.yaml -m rag_train.train recipes/deeprag_sft.yaml
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rag_train.errors import OneProcessError, UserError
from rag_train.recipe import describe
from rag_train.training.recipe import TrainRecipe, load_train_recipe
from rag_train.training.result import summary_line
from rag_train.training.run import dry_run, train


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and return the exit code: 0, or 2 for an error that the user can fix.

    Under a launcher, the first process reports for all, except for errors that only one process met.
    """
    keys = "\n".join(f"  {key.name} ({key.type}, {key.default}): {key.help}" for key in describe(TrainRecipe))
    parser = argparse.ArgumentParser(
        prog="python -m rag_train.train",
        description="Train a controller from a recipe.",
        epilog=f"keys of a recipe:\n{keys}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("recipe", help="YAML file, for example recipes/deeprag_sft.yaml")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="replace a key, for example dpo.beta=0.2"
    )
    parser.add_argument("--dry-run", action="store_true", help="print steps, memory, disk and time; start nothing")
    parser.add_argument("--device", help="with --dry-run: the accelerator to plan for, such as h100")
    options = parser.parse_args(arguments)
    if options.device and not options.dry_run:
        parser.error("--device: only with --dry-run")
    first = os.environ.get("RANK", "0") == "0"
    try:
        recipe = load_train_recipe(options.recipe, options.overrides)
        if options.dry_run:
            if first:
                dry_run(recipe, options.device)
            return 0
        result = train(recipe)
        from rag_train.training.processes import end_processes  # here, for it imports PyTorch

        end_processes()
    except UserError as error:
        if first or isinstance(error, OneProcessError):
            print(f"error: {error}", file=sys.stderr)
        return 2
    if first:
        print(summary_line(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
