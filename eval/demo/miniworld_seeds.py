"""The demo in the mini world on its test seeds, as ``miniworld_protocol.yaml`` says (make demo-seeds).

Writes demo_seeds.json after each seed; seeds that the file has from other days and machines stay in it. A killed
run continues when the same command is given again. Every start and every end is logged with those of the papers'
claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_train.eval.benchmarks.common import benchmark_parser, exit_on_user_error, seed_list


def main(arguments: Sequence[str] | None = None) -> None:
    parser = benchmark_parser(__doc__)
    parser.prog = "python -m rag_train.eval.demo.miniworld_seeds"
    parser.add_argument("--seeds", type=seed_list, help="comma-separated test seeds to run now; default: all")
    parser.add_argument("--work", type=Path, default=Path("runs/demo"), help="directory of models and answers")
    options = parser.parse_args(arguments)

    import asyncio
    from dataclasses import asdict

    from rag_train.eval.by_seed import run_by_seed
    from rag_train.eval.demo.recipe import demo_recipe
    from rag_train.eval.demo.reference import PROTOCOL, effects, verdicts_so_far
    from rag_train.eval.demo.run import run_seed
    from rag_train.eval.metrics.summary import RunSummary
    from rag_train.eval.papers.protocol import logged, seeds_of
    from rag_train.progress import console

    def run(seed: int) -> dict[str, Any]:
        result = asyncio.run(run_seed(recipe, seed, options.work, scratch=False))
        return {"runs": [run.model_dump(mode="json") for run in result.runs], "timings": result.timings}

    with exit_on_user_error():
        recipe = demo_recipe()
        seeds = seeds_of(PROTOCOL, "test", options.seeds)
        with logged("demo of the mini world", seeds, PROTOCOL) as outcome:
            found = run_by_seed(options.output / "demo_seeds.json", asdict(recipe), seeds, run)
            runs = [RunSummary.model_validate(run) for result in found.values() for run in result["runs"]]
            decided = verdicts_so_far(runs)
            lines = [
                f"{text}: {decided[text]}, {', '.join(f'{value:+.3f}' for value in values)}"
                for text, values in effects(runs).items()
            ]
            outcome.text = f"seeds {', '.join(map(str, found))}; {'; '.join(lines)}"
        for line in lines:
            console.print(line)


if __name__ == "__main__":
    main()
