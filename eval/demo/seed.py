"""One seed of an experiment: its world and its models, what they answer, and how long each part takes."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from rag_train.data_synth.methods.deeprag import DeepRAGData, DeepRAGRecipe
from rag_train.eval.demo.claims import FIRST
from rag_train.eval.demo.recipe import MAX_TOKENS, DemoRecipe, StageRecipe
from rag_train.eval.demo.results import Curve, Series
from rag_train.eval.demo.world import Known, open_world
from rag_train.eval.matrix.answers import Answers, needs_attention
from rag_train.eval.metrics.summary import RunSummary, summarize
from rag_train.formats.instructions import OURS, Given
from rag_train.llm.base import LLM
from rag_train.llm.checkpoint import base_of, check_adapter
from rag_train.llm.engines import Adapted
from rag_train.llm.transformers import TransformersEngine
from rag_train.llm.vllm import VLLMEngine
from rag_train.progress import console
from rag_train.provenance import settings_hash, weights_sha256
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.training.recipe import DPORecipe, SFTRecipe, TrainRecipe
from rag_train.training.result import TrainResult
from rag_train.training.run import train
from rag_train.worlds.mini.text import VERSION


class Seed:
    """One seed. Steps that were completed in the work directory under the same recipe are not repeated.

    Attributes:
        known: whether the starting model knows the answer, by subquery, for the facts behind the questions.
        runs: a summary for each strategy and stage.
        trajectories: by "strategy, stage".
        curves: the trainings.
        timings: seconds of each part.
    """

    def __init__(self, recipe: DemoRecipe, number: int, work: Path, scratch: bool):
        began = time.perf_counter()
        self.recipe, self.number, self.work = recipe, number, work
        self.folder = folder_of(recipe, number, work)
        self.world = open_world(recipe, number, self.folder, work, scratch)
        self.retriever = AsyncRetriever(self.world.index)
        self.retrievers: dict[str, AsyncRetriever] = {}
        self.known: Known = {}
        self.runs: list[RunSummary] = []
        self.trajectories: dict[str, list[Trajectory]] = {}
        self.curves: list[Curve] = list(self.world.curves)
        self.timings = {"world, index and starting model": time.perf_counter() - began}

    def questions(self, name: str) -> list[Question]:
        """Return the questions that the run ``name`` has answered."""
        return self.world.asked[: len(self.trajectories[name])]

    @contextmanager
    def step(self, part: str) -> Iterator[None]:
        """Announce a part of the run, and add its seconds to `timings`."""
        console.print(f"[bold]{part}[/bold] (seed {self.number})")
        start = time.perf_counter()
        yield
        self.timings[part] = self.timings.get(part, 0.0) + time.perf_counter() - start

    @asynccontextmanager
    async def serving(self, model: Path) -> AsyncIterator[LLM]:
        """Serve a checkpoint, or an adapter on its base, with vLLM within the block."""
        base, adapter = base_of(str(model))
        rank = check_adapter(adapter) if adapter else None
        with self.step("engine starts"):
            engine = VLLMEngine.start(base, seed=self.number, max_lora_rank=rank, **self.world.engine)
        try:
            yield Adapted(engine, adapter) if adapter else engine
        finally:
            await engine.aclose()

    async def measure(self, engine: LLM) -> None:
        """Measure or look up what the starting model knows of the facts behind the questions."""
        if self.world.chat_template:
            engine.tokenizer.chat_template = self.world.chat_template
        with self.step("knowledge"):
            found = await self.world.known(engine, self.world.asked, self.folder / "known.jsonl")
            self.known |= {subquery: known for subquery, known in found.items() if known is not None}

    async def answer(
        self,
        engine: LLM,
        stage: str,
        model: Path,
        strategies: Sequence[str],
        *,
        instructed: Collection[str] = (),
        sample: Mapping[str, int] | None = None,
        passages: int = 3,
    ) -> None:
        """Answer the questions with ``engine``, which serves ``model``, and summarize each strategy.

        Args:
            strategies: names with settings.
            instructed: names of the strategies whose prompts begin with the method's instruction.
            sample: smaller numbers of questions, by the name of the strategy.
        """
        with self.step(f"answering, {stage}"):
            for strategy in strategies:
                name = strategy.partition(",")[0]
                asked = self.world.asked[: (sample or {}).get(name)]
                kept = Answers(self.folder / "answers", strategy, {"weights": weights_sha256(str(model))})

                def kit(llm: LLM, given: Given = name in instructed and OURS) -> Kit:
                    return Kit(llm, self.retriever, passages, instructions=given, retrievers=self.retrievers)

                if needs_attention(strategy) and kept.missing(asked):
                    base, adapter = base_of(str(model))
                    async with aclosing(TransformersEngine.start(base)) as slow:
                        answers = await kept.ask(kit(Adapted(slow, adapter) if adapter else slow), asked)
                else:
                    answers = await kept.ask(kit(engine), asked)
                self.trajectories[f"{name}, {stage}"] = answers
                summary = summarize(
                    asked,
                    answers,
                    strategy=name,
                    stage=stage,
                    seed=self.number,
                    cot=self.trajectories.get(f"cot, {FIRST}"),
                    known=self.known if name.startswith("deeprag") else None,
                )
                self.runs.append(summary)

    async def search(self, data: str, model: Path, engine: LLM, questions: list[Question], **settings: Any) -> Path:
        """Make data of this kind (`DeepRAGRecipe.stage`) with ``engine``, which serves ``model``.

        ``settings`` are more keys of the `DeepRAGRecipe`.
        """
        output = self.folder / f"{data}.jsonl"
        places: dict[str, Any] = {"stage": data, "model": str(model), "output": str(output), "seed": self.number}
        recipe = DeepRAGRecipe(questions=[], index="", instructions=False, **places, **settings)
        with self.step(f"data, {data}"):
            await DeepRAGData(recipe, questions, engine, self.retriever).write()
        return output

    def train(
        self,
        stage: Literal["sft", "dpo"],
        settings: StageRecipe,
        model: Path,
        data: Path,
        name: str,
        title: str,
        *keys: str,
    ) -> Path:
        """Train ``model`` on the records of a stage, and return the directory; ``keys`` are drawn on the page."""
        packed = settings.pack_tokens is not None
        batch = 1 if packed else math.gcd(settings.batch_size, 4)  # small batches need little memory
        dpo = DPORecipe(beta=settings.beta, sft_weight=settings.sft_weight, layout=settings.layout)
        recipe = TrainRecipe(
            stage=stage,
            model=str(model),
            data=data,
            output_dir=str(self.folder / name.replace(" ", "")),
            seed=self.number,
            max_tokens=MAX_TOKENS,
            lr=settings.lr,
            epochs=settings.epochs,
            batch_size=batch,
            gradient_accumulation=settings.batch_size // batch,
            balance=settings.balance,
            lora=settings.lora,
            save_steps=100,
            logging_steps=5,
            sft=SFTRecipe(pack_tokens=settings.pack_tokens) if stage == "sft" else None,
            dpo=dpo if stage == "dpo" else None,
        )
        with self.step(f"training, {name}"):
            result = train(recipe)
        self.curves.append(curve(title, result, *keys))
        return Path(recipe.output_dir)


def folder_of(recipe: DemoRecipe, seed: int, work: Path) -> Path:
    """Return the folder in ``work`` of a seed's data and models, named by the recipe.

    The name also depends on the version of the mini model's text. What is only asked, and thresholds, have no
    influence on data and models.
    """
    keys = {name: value for name, value in asdict(recipe).items() if name != "thresholds"}
    if recipe.lessons:
        keys["lessons"] = asdict(replace(recipe.lessons, sample={}, untuned=[], tuned=None))
    if recipe.miniworld is not None:
        keys["text"] = VERSION
    return work / f"seed{seed}-{settings_hash(keys)}"


def curve(title: str, result: TrainResult, *keys: str) -> Curve:
    """Return the logged ``keys`` of a training as a plot."""
    names = {"loss": "loss", "rewards/margins": "margin"}
    series = [
        Series(
            name=names[key],
            x=[float(entry["step"]) for entry in result.losses if key in entry],
            y=[float(entry[key]) for entry in result.losses if key in entry],
        )
        for key in keys
    ]
    return Curve(title=title, x_label="step", y_label=", ".join(names[key] for key in keys), series=series)
