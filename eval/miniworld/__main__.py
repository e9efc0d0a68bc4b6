"""Experiments in the mini world that are not commands of `rag-train`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path


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
    teacher_data.add_argument("--seeds", type=_seeds, default="0,1,2", help="comma-separated seeds")
    for experiment, questions in ((strategies, 100), (teacher_data, 200)):
        experiment.add_argument("--questions", type=int, default=questions, help="multi-hop questions per seed")
        experiment.add_argument("--split", default="test", help="dev to choose settings, test to report")
        experiment.add_argument("--work", type=Path, default=Path("runs/miniature"), help="models and answers")
        experiment.add_argument("--output", type=Path, default=Path("docs/results"), help="directory of results")
    options = parser.parse_args()
    from rag_train.eval.miniworld import strategies as every_strategy
    from rag_train.eval.miniworld import teacher_data as teaching
    from rag_train.eval.miniworld.lab import Settings

    settings = Settings(work=options.work, split=options.split, questions=options.questions)
    if options.experiment == "strategies":
        asyncio.run(every_strategy.run(options.seed, settings, options.output))
    else:
        asyncio.run(teaching.run(options.seeds, settings, options.output))


def _seeds(text: str) -> list[int]:
    seeds = [int(number) for number in text.split(",")]
    if len(seeds) < 2:
        raise argparse.ArgumentTypeError("an interval over seeds needs at least two, such as 0,1")
    return seeds


if __name__ == "__main__":
    main()
