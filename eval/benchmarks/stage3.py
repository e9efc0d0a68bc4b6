"""What the benchmarks of Stage III share: the demo's models, questions that no stage has seen, training, answers.

A seed is a world of the mini world, its pretrained model, and the demo's cold start and Stages I and II on it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_train.errors import UserError
from rag_train.eval.benchmarks.common import benchmark_parser, seed_list, stage3_recipe

if TYPE_CHECKING:
    from rag_train.eval.metrics.summary import RunSummary
    from rag_train.miniworld.world import World
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.schema import Question
    from rag_train.training.recipe import TrainRecipe

PROTOCOL = Path(__file__).with_name("stage3_protocol.yaml")
DEEPRAG = "deeprag"


@dataclass
class DemoSeed:
    """A seed of the demo, and what all of its models answer.

    Attributes:
        models: folder of the demo with coldstart/, stage1/ and stage2/.
        folder: working directory of this seed, with ``index``.
        training: training questions that no stage has seen, about films and people that Stage I has not searched;
            to the facts of its own questions, its decisions are fitted already.
        questions: questions to answer.
        known: whether the pretrained model knows a fact, by subquery.
    """

    seed: int
    models: Path
    folder: Path
    training: list[Question]
    questions: list[Question]
    known: dict[str, bool]
    retriever: AsyncRetriever

    def recipe(self, start: Path, price: float, options: argparse.Namespace) -> TrainRecipe:
        """Return the recipe of tree credit from ``start`` on the first training questions, whose file it writes."""
        from rag_train.files import write_records

        recipe = tree_recipe(start, self.folder, price)
        write_records(recipe.data, self.training[: options.questions])
        output = self.folder / f"{start.name}-{price:g}-{options.lr:g}"
        return replace(recipe, seed=self.seed, lr=options.lr, output_dir=str(output))

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


def demo_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that name the demo's models."""
    parser = benchmark_parser(description)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="working directory of the demo")
    parser.add_argument("--seeds", type=seed_list, default="0", help="comma-separated seeds of the demo")
    parser.add_argument("--split", choices=("dev", "test"), default="dev", help="dev to choose, test to report")
    return parser


def stage3_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the benchmarks that train."""
    parser = demo_parser(description)
    parser.add_argument("--work", type=Path, default=Path("runs/stage3"), help="working directory; runs are kept")
    parser.add_argument("--questions", type=int, default=640, help="training questions of a run with tree credit")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of tree credit")
    parser.add_argument("--answers", type=int, default=1000, help="questions of several hops to answer")
    return parser


def tree_recipe(model: Path, folder: Path, price: float) -> TrainRecipe:
    """Return the recipe of tree credit from ``model`` at a price of a retrieval; see `stage3_recipe`."""
    return stage3_recipe(str(model), folder, price, credit="tree", engine="vllm", branches=2)


def settings_of(recipe: TrainRecipe) -> dict[str, Any]:
    """Return the settings of the demo and of Stage III that determine the results, as JSON values.

    Left out is what belongs to a single run: paths, seed, learning rate, price and budget.
    """
    from rag_train.eval.demo.recipe import demo_recipe

    stage3 = asdict(recipe)
    for name in ("model", "data", "output_dir", "seed", "lr"):
        del stage3[name]
    for name in ("index", "price", "budget"):
        del stage3["rl"][name]
    return {"demo": asdict(demo_recipe()), "stage3": stage3}


def models_of(demo: Path, seeds: Sequence[int], split: str) -> dict[int, Path]:
    """Return the demo's folder of each seed of a split, from a run with the recipe as it is now.

    Raises UserError if the demo has not finished a seed.
    """
    from rag_train.eval.demo.recipe import demo_recipe
    from rag_train.eval.demo.run import folder_of
    from rag_train.training.result import RESULT

    recipe = demo_recipe()
    runs = (recipe, replace(recipe, split="dev"))
    found = {
        seed: [
            folder
            for folder in (folder_of(run, seed, demo) for run in runs)
            if (folder / "stage2" / RESULT).is_file()
        ]
        for seed in seeds
    }
    if missing := ",".join(str(seed) for seed, folders in found.items() if not folders):
        command = f"rag-train demo --seeds {missing}"
        if split == "test":
            command = (
                f"make demo-seeds SEEDS={missing} (python -m rag_train.eval.demo.miniworld_seeds --seeds {missing})"
            )
        raise UserError(
            f"--demo {demo}: no models of seed {missing} by recipes/demo.yaml as it is now; run {command} first"
        )
    return {seed: folders[0] for seed, folders in found.items()}


def world_of(seed: int) -> World:
    """Return the demo's world of a seed."""
    from rag_train.eval.demo.recipe import MiniWorldRecipe, demo_recipe
    from rag_train.miniworld.world import World

    return World(replace((demo_recipe().miniworld or MiniWorldRecipe()).world, seed=seed))


def open_seed(models: Path, seed: int, options: argparse.Namespace) -> DemoSeed:
    """Return a seed, with an index of its corpus.

    Args:
        models: the demo's folder of the seed.
        seed: the seed.
        options: those of `stage3_parser`, and ``questions``, the number of training questions that are needed.

    Raises:
        UserError: if there are fewer questions than ``questions`` or ``answers``.
    """
    from rag_train.eval.demo.recipe import demo_recipe
    from rag_train.eval.miniworld.lab import multi_hop, training_questions
    from rag_train.miniworld.world import known_subqueries
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25_build import build_bm25
    from rag_train.retrieval.open import open_retriever

    world = world_of(seed)
    folder = options.work / models.name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "index").exists():
        build_bm25(world.corpus(), folder / "index")
    used = training_questions(world, demo_recipe())
    seen = {question.question for question in (*used.cold_start, *used.stage2)}
    left = [question for question in multi_hop(world.questions("lessons")) if question.question not in seen]
    asked = multi_hop(world.questions(options.split))
    for name, found in (("questions", left), ("answers", asked)):
        if len(found) < (needed := getattr(options, name)):
            raise UserError(f"--{name} {needed}: seed {seed} has {len(found)}; give at most that number")
    return DemoSeed(
        seed,
        models,
        folder,
        left,
        asked[: options.answers],
        known_subqueries(world),
        AsyncRetriever(open_retriever(str(folder / "index"))),
    )


def trained(recipe: TrainRecipe) -> tuple[Path, bool]:
    """Train, and return the folder of the model and whether the run collapsed.

    A collapsed run has nothing left to learn from. Its model is that of its last checkpoint: more steps would not
    have changed it. Its adapters are merged into the model that they were trained on.
    """
    from rag_train.progress import console
    from rag_train.training.checkpoints import newest_complete
    from rag_train.training.merge import merge
    from rag_train.training.rl.trainer import Collapsed
    from rag_train.training.run import train

    try:
        train(recipe)
    except Collapsed as collapse:
        checkpoint = newest_complete(Path(recipe.output_dir) / "checkpoints")
        if checkpoint is None:
            raise
        console.print(str(collapse), markup=False, soft_wrap=True)
        merged = checkpoint.parent / "collapsed"
        if not merged.exists():
            merge(recipe.model, str(checkpoint), merged)
        return merged, True
    return Path(recipe.output_dir), False
