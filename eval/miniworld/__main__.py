"""Experiments in the mini world that are not commands of `rag-train`.

A run on test seeds of the papers' protocol needs the protocol's settings, and is entered in the log of such runs.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rag_train.eval.benchmarks.common import exit_on_user_error, seed_list


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m rag_train.eval.miniworld", description=__doc__)
    experiments = parser.add_subparsers(dest="experiment", required=True)
    strategies = experiments.add_parser(
        "strategies", help="answer the same questions with every strategy; writes strategies.json"
    )
    strategies.add_argument("--seed", type=int, default=0, help="seed of the world and the models")
    teacher_data = experiments.add_parser(
        "teacher-data", help="compare students with their teacher; writes teacher_data.json"
    )
    teacher_data.add_argument("--seeds", type=_several, default="0,1,2", help="comma-separated seeds")
    thresholds = experiments.add_parser(
        "thresholds",
        help="try thresholds of three strategies on dev questions; writes thresholds.json",
    )
    thresholds.add_argument("--seeds", type=seed_list, default="0,10,11", help="comma-separated seeds")
    thresholds.set_defaults(split="dev")
    quality = experiments.add_parser(
        "quality", help="measure what the pretrained mini model recalls and reads; writes mini_model.json"
    )
    quality.add_argument("--seeds", type=seed_list, default="0", help="comma-separated seeds")
    ship = experiments.add_parser("ship", help="copy the demo's mini model and its controller into the package")
    ship.add_argument("--demo", type=Path, default=Path("runs/demo"), help="working directory of the demo, seed 0")
    for experiment, questions in ((strategies, 100), (teacher_data, 200)):
        experiment.add_argument("--questions", type=int, default=questions, help="multi-hop questions per seed")
    for experiment in (strategies, teacher_data, quality):
        experiment.add_argument("--split", default="test", help="dev to choose settings, test to report")
    for experiment in (strategies, teacher_data, thresholds, quality):
        experiment.add_argument("--work", type=Path, default=Path("runs/miniature"), help="models and answers")
        experiment.add_argument("--output", type=Path, default=Path("docs/results"), help="directory of results")
    options = parser.parse_args(arguments)
    with exit_on_user_error():
        if options.experiment == "ship":
            from rag_train.eval.miniworld.ship import ship as copy

            copy(options.demo)
        else:
            _measure(options)


def _measure(options: argparse.Namespace) -> None:
    """Run an experiment. Raises UserError for test seeds together with others or with other settings."""
    from rag_train.eval.miniworld import quality, strategies, teacher_data, thresholds
    from rag_train.eval.miniworld.lab import Settings
    from rag_train.eval.papers.protocol import load_protocol, logged

    chosen = {name: value for name, value in vars(options).items() if name in ("work", "split", "questions")}
    settings = Settings(**chosen)
    seeds = [options.seed] if options.experiment == "strategies" else options.seeds
    on_test_seeds = load_protocol().are_test_seeds(seeds, settings.recorded())
    with logged(f"mini world, {options.experiment}", seeds) if on_test_seeds else nullcontext():
        if options.experiment == "strategies":
            asyncio.run(strategies.run(options.seed, settings, options.output))
            return
        experiments = {"teacher-data": teacher_data, "thresholds": thresholds, "quality": quality}
        asyncio.run(experiments[options.experiment].run(seeds, settings, options.output))


def _several(text: str) -> list[int]:
    seeds = seed_list(text)
    if len(seeds) < 2:
        raise argparse.ArgumentTypeError("an interval over seeds needs at least two, such as 0,1")
    return seeds


if __name__ == "__main__":
    main()
