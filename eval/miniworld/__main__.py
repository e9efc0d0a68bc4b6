"""Experiments in the mini world that are not commands of `rag-train`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from rag_train.eval.benchmarks.common import exit_on_user_error, seed_list


def main() -> None:
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
        experiment.add_argument("--work", type=Path, default=Path("runs/miniature"), help="models and answers")
        experiment.add_argument("--output", type=Path, default=Path("docs/results"), help="directory of results")
    options = parser.parse_args()
    if options.experiment == "ship":
        from rag_train.eval.miniworld.ship import ship as copy

        with exit_on_user_error():
            copy(options.demo)
        return
    from rag_train.eval.miniworld import quality as by_itself
    from rag_train.eval.miniworld import strategies as every_strategy
    from rag_train.eval.miniworld import teacher_data as teaching
    from rag_train.eval.miniworld.lab import Settings

    if options.experiment == "quality":
        settings = Settings(work=options.work, split=options.split)
        asyncio.run(by_itself.run(options.seeds, settings, options.output))
        return
    settings = Settings(work=options.work, split=options.split, questions=options.questions)
    if options.experiment == "strategies":
        asyncio.run(every_strategy.run(options.seed, settings, options.output))
    else:
        asyncio.run(teaching.run(options.seeds, settings, options.output))


def _several(text: str) -> list[int]:
    seeds = seed_list(text)
    if len(seeds) < 2:
        raise argparse.ArgumentTypeError("an interval over seeds needs at least two, such as 0,1")
    return seeds


if __name__ == "__main__":
    main()
