"""The atlas demo on its test seeds, as ``protocol.yaml`` says (make atlas-seeds). Writes atlas.json and atlas.html.

A killed run continues when the same command is given again. Every start and every end is logged with those of the
papers' claims.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rag_train.eval.benchmarks.common import benchmark_parser, exit_on_user_error

PROTOCOL = Path(__file__).with_name("protocol.yaml")


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/atlas"), help="directory of models and answers")
    options = parser.parse_args()

    from rag_train.eval.demo.recipe import DemoRecipe
    from rag_train.eval.demo.run import run_demo
    from rag_train.eval.papers.protocol import logged, seeds_of
    from rag_train.recipe import load_recipe
    from rag_train.working_files import PACKAGE

    with exit_on_user_error():
        recipe = load_recipe(DemoRecipe, PACKAGE / "recipes/demo_atlas.yaml", [])
        seeds = seeds_of(PROTOCOL, "test")
        with logged("demo of the atlas", seeds, PROTOCOL) as outcome:
            data = run_demo(recipe, seeds, options.work, options.work)
            outcome.text = "; ".join(f"{claim.text}: {claim.evidence}" for claim in data.claims)
        for kind in ("json", "html"):
            shutil.move(options.work / f"demo.{kind}", options.output / f"atlas.{kind}")


if __name__ == "__main__":
    main()
