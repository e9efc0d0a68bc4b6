"""What the benchmarks of Stage III share: the models of the demo, questions that no stage has seen, and answers.

A seed is a world of the mini world, its pretrained model, and the demo's cold start and Stages I and II on it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rag_train.errors import UserError
from rag_train.eval.benchmarks.common import benchmark_parser, seed_list

if TYPE_CHECKING:
    from rag_train.eval.metrics.summary import RunSummary
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.schema import Question

PROTOCOL = Path(__file__).with_name("stage3_protocol.yaml")
DEEPRAG = "deeprag"


@dataclass
class DemoSeed:
    """A seed of the demo, and what all of its models answer.

    Attributes:
        models: folder of the demo with stage1/ and stage2/.
        folder: working directory of this seed, with ``index``.
        questions: questions to answer.
        known: whether the pretrained model knows a fact, by subquery.
    """

    seed: int
    models: Path
    folder: Path
    questions: list[Question]
    known: dict[str, bool]
    retriever: AsyncRetriever

    async def runs(self, model: Path, stage: str, strategies: Sequence[str] = (DEEPRAG,)) -> list[RunSummary]:
        """Answer the questions, or read the stored answers, and summarise them."""
        from rag_train.eval.matrix.answers import Answers
        from rag_train.eval.metrics.summary import summarize
        from rag_train.llm.vllm import VLLMEngine
        from rag_train.provenance import weights_sha256
        from rag_train.strategies.base import Kit

        settings = {"weights": weights_sha256(str(model))}
        kept = [Answers(self.folder / "answers", name, settings) for name in strategies]
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


def stage3_parser(description: str | None, name: str) -> argparse.ArgumentParser:
    """Return a parser with the options that the benchmarks share; ``name`` is that of the working directory."""
    parser = benchmark_parser(description)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="working directory of the demo")
    parser.add_argument("--work", type=Path, default=Path("runs") / name, help="working directory; runs are kept")
    parser.add_argument("--seeds", type=seed_list, default="0", help="comma-separated seeds of the demo")
    parser.add_argument("--lr", type=float, default=1e-4, help="learning rate of Stage III")
    parser.add_argument("--split", choices=("dev", "test"), default="dev", help="dev to choose, test to report")
    return parser


def models_of(demo: Path, seeds: Sequence[int]) -> dict[int, Path]:
    """Return the demo's folder of each seed. Raises UserError if the demo has not finished one of them."""
    found = {seed: sorted(demo.glob(f"seed{seed}-*/stage2/training.json")) for seed in seeds}
    if missing := ",".join(str(seed) for seed, files in found.items() if not files):
        raise UserError(f"--demo {demo}: no models of seed {missing}; run rag-train demo --seeds {missing} first")
    return {seed: files[0].parents[1] for seed, files in found.items()}


def open_seed(models: Path, seed: int, work: Path, split: str, training: int) -> DemoSeed:
    """Return a seed, and write ``questions.jsonl``, its training questions that no stage has seen.

    Args:
        models: the demo's folder of the seed.
        work: parent of the seed's working directory.
        split: split of the questions to answer.
        training: number of training questions.

    Raises:
        UserError: if so many are not left.
    """
    from rag_train.eval.demo.recipe import DemoRecipe, MiniWorldRecipe
    from rag_train.eval.demo.world import training_questions
    from rag_train.eval.miniworld.lab import COMPARISONS_TAUGHT, multi_hop
    from rag_train.files import write_records
    from rag_train.miniworld.world import World, known_subqueries
    from rag_train.recipe import load_recipe
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25_build import build_bm25
    from rag_train.retrieval.open import open_retriever
    from rag_train.working_files import PACKAGE

    demo = load_recipe(DemoRecipe, PACKAGE / "recipes/demo.yaml", [])
    world = World(replace((demo.miniworld or MiniWorldRecipe()).world, seed=seed))
    folder = work / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "index").exists():
        build_bm25(world.corpus(), folder / "index")
    _, stages = training_questions(world, demo)
    seen = {question.question for question in stages[: demo.stage1.questions + demo.stage2.questions]}
    several = multi_hop(world.questions("train", comparisons=COMPARISONS_TAUGHT))
    left = [question for question in several if question.question not in seen]
    if len(left) < training:
        raise UserError(f"seed {seed}: {len(left)} training questions are left, but {training} are needed")
    write_records(folder / "questions.jsonl", left[:training])
    return DemoSeed(
        seed,
        models,
        folder,
        multi_hop(world.questions(split))[: demo.test_questions],
        known_subqueries(world),
        AsyncRetriever(open_retriever(str(folder / "index"))),
    )
