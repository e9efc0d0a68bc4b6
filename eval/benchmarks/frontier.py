"""Accuracy against retrievals: Stage III at several prices of a retrieval, and Stage II at several thresholds.

For each seed of the mini world's demo, Stage III starts from the model of Stage I and from that of Stage II. All
models answer the same questions; what changed is measured by itself: decisions against the known boundary, and
causes of wrong answers (subqueries, reading, stopping). Writes bench_frontier.json.

First: rag-train demo --seeds 0,1,2
Then:  python -m rag_train.eval.benchmarks.frontier --demo runs/demo
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rag_train.errors import UserError
from rag_train.eval.benchmarks.common import benchmark_parser, exit_on_user_error, stage3_recipe

if TYPE_CHECKING:
    from rag_train.eval.metrics.summary import RunSummary
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.schema import Question

STARTS = {"stage1": "stage 1", "stage2": "stage 2"}
"""Folders of the models that Stage III starts from, with their names in the tables."""
THRESHOLDS = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Probabilities of retrieving from which the model of Stage II retrieves."""
DEEPRAG = "deeprag"


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="working directory of the demo")
    parser.add_argument("--work", type=Path, default=Path("runs/frontier"), help="working directory; runs are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the demo")
    parser.add_argument("--prices", type=float, nargs="+", default=[0.0, 0.05, 0.2], help="of a retrieval")
    parser.add_argument("--questions", type=int, default=320, help="training questions of Stage III")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate of Stage III")
    parser.add_argument("--split", choices=("dev", "test"), default="dev", help="dev to choose, test to report")
    options = parser.parse_args()

    from rag_train.eval.matrix.tables import cause_table, decision_table, main_table
    from rag_train.eval.metrics.summary import pool
    from rag_train.progress import console
    from rag_train.provenance import save_result

    with exit_on_user_error():
        runs = [run for seed in options.seeds for run in asyncio.run(frontier(options, seed))]
    for table in (main_table, decision_table, cause_table):
        console.print(table(pool(runs)))
    settings = {name: getattr(options, name) for name in ("prices", "questions", "lr", "split")}
    found = [run.model_dump(mode="json") for run in runs]
    save_result(options.output / "bench_frontier.json", settings | {"runs": found})


@dataclass
class Asked:
    """What all models of a seed answer: ``questions``, of whose facts the pretrained model knows ``known``."""

    seed: int
    questions: list[Question]
    known: dict[str, bool]
    retriever: AsyncRetriever
    answers: Path

    async def runs(self, model: Path, stage: str, strategies: Sequence[str] = (DEEPRAG,)) -> list[RunSummary]:
        """Answer the questions, or read the stored answers, and summarise them."""
        from rag_train.eval.matrix.answers import Answers
        from rag_train.eval.metrics.summary import summarize
        from rag_train.llm.vllm import VLLMEngine
        from rag_train.strategies.base import Kit

        kept = [Answers(self.answers, name, {"model": str(model)}) for name in strategies]
        if any(each.missing(self.questions) for each in kept):
            engine = VLLMEngine.start(str(model), seed=self.seed, dtype="float32", kv_cache_bytes=2**29)
            kit = Kit(engine, self.retriever, instructions=False)
            try:
                for each in kept:
                    await each.ask(kit, self.questions)
            finally:
                await engine.aclose()
        return [
            summarize(
                self.questions,
                each.of(self.questions),
                strategy=each.strategy,
                stage=stage,
                seed=self.seed,
                known=self.known,
            )
            for each in kept
        ]


async def frontier(options: argparse.Namespace, seed: int) -> list[RunSummary]:
    """Train and evaluate one seed. Raises UserError if the demo has no models of this seed."""
    from rag_train.eval.demo.recipe import DemoRecipe, MiniWorldRecipe
    from rag_train.eval.miniworld.lab import multi_hop
    from rag_train.files import write_records
    from rag_train.miniworld.world import World, known_subqueries
    from rag_train.recipe import load_recipe
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25_build import build_bm25
    from rag_train.retrieval.open import open_retriever
    from rag_train.training.run import train
    from rag_train.working_files import PACKAGE

    finished = sorted(options.demo.glob(f"seed{seed}-*/stage2/training.json"))
    if not finished:
        raise UserError(f"--demo {options.demo}: no models of seed {seed}; run rag-train demo --seeds {seed} first")
    models = finished[0].parents[1]
    demo = load_recipe(DemoRecipe, PACKAGE / "recipes/demo.yaml", [])
    world = World(replace((demo.miniworld or MiniWorldRecipe()).world, seed=seed))
    folder = options.work / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "index").exists():
        build_bm25(world.corpus(), folder / "index")
    searched = demo.stage1.questions + demo.stage2.questions
    write_records(folder / "questions.jsonl", multi_hop(world.questions("train"))[searched:][: options.questions])

    asked = Asked(
        seed,
        multi_hop(world.questions(options.split))[: demo.test_questions],
        known_subqueries(world),
        AsyncRetriever(open_retriever(str(folder / "index"))),
        folder / "answers",
    )
    swept = [f"{DEEPRAG},threshold={threshold}" for threshold in THRESHOLDS]
    runs = await asked.runs(models / "stage2", "stage 2", swept)
    runs += await asked.runs(models / "stage1", "stage 1")
    for start, name in STARTS.items():
        for price in options.prices:
            model = folder / f"{start}-{price}"
            recipe = stage3_recipe(str(models / start), folder, price, credit="tree", engine="vllm")
            train(replace(recipe, seed=seed, lr=options.lr, output_dir=str(model)))
            runs += await asked.runs(model, f"stage 3 from {name}, price {price}")
    return runs


if __name__ == "__main__":
    main()
