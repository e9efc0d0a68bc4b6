"""Every strategy on a real model: ``python -m rag_train.eval.real`` (make real).

Without overrides and --recipe, the seeds are the test seeds of ``protocol.yaml``, and the run is entered in the log
of runs on test seeds. All else is a comparison of your own: its seeds are 0, 1 and 2, and needs another --output.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rag_train.eval.benchmarks.common import benchmark_parser, exit_on_user_error, seed_list
from rag_train.eval.real.recipe import RealRecipe
from rag_train.recipe import load_recipe
from rag_train.working_files import PACKAGE


def main(arguments: Sequence[str] | None = None) -> None:
    parser = benchmark_parser(__doc__)
    parser.prog = "python -m rag_train.eval.real"
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="override recipe keys: split=dev")
    parser.add_argument("--recipe", type=Path, help="default: recipes/real.yaml, or real_files.yaml with --data")
    parser.add_argument("--data", type=Path, help="folder of released files and corpus.jsonl; default: the atlas")
    parser.add_argument("--seeds", type=seed_list, help="comma-separated training seeds; with split=dev any")
    parser.add_argument("--work", type=Path, default=Path("runs/real"), help="models and answers, which are kept")
    options = parser.parse_args(arguments)
    from rag_train.eval.papers.protocol import logged, seeds_of
    from rag_train.eval.real.gains import PROTOCOL
    from rag_train.eval.real.run import run

    with exit_on_user_error():
        default = PACKAGE / "recipes" / ("real_files.yaml" if options.data else "real.yaml")
        recipe = load_recipe(RealRecipe, options.recipe or default, options.overrides)
        if options.overrides or options.recipe:
            run(recipe, options.seeds or [0, 1, 2], options.data, options.work, options.output)
            return
        seeds = seeds_of(PROTOCOL, "files" if options.data else "test", options.seeds)
        what = f"every strategy on a real model, {'released files' if options.data else 'the atlas'}"
        with logged(what, seeds, PROTOCOL) as outcome:
            gains = run(recipe, seeds, options.data, options.work, options.output)
            told = [f"{row[0]} on {name}: {row[4]}" for name, table in gains.items() for row in table.rows]
            outcome.text = f"exact match, tuned minus untuned, all seeds so far: {'; '.join(told)}"


if __name__ == "__main__":
    main()
