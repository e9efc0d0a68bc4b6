"""Every strategy on a real model: one model, one corpus, the same questions.

Per seed, the starting model is tuned on gold examples of all methods, the same number of tokens for each. The tuned
model answers with every strategy, the untuned one with the strategies that the recipe names. Questions that were
answered before are not asked again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rag_train.eval.by_seed import run_by_seed
from rag_train.eval.demo.stages import fine_tune, search
from rag_train.eval.matrix.answers import Answers, needs_attention
from rag_train.eval.matrix.tables import main_table
from rag_train.eval.metrics.summary import RunSummary, pool, summarize
from rag_train.eval.real.examples import equal_shares, gold_examples
from rag_train.eval.real.recipe import RealRecipe
from rag_train.eval.real.world import RealWorld, open_atlas, open_files
from rag_train.files import read_records, write_records, write_text
from rag_train.llm.base import LLM
from rag_train.llm.packaged import checkpoint_of
from rag_train.llm.transformers import TransformersEngine
from rag_train.llm.vllm import VLLMEngine
from rag_train.progress import console
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Question, SFTRecord, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.kit import RETRIEVER_KINDS
from rag_train.strategies.registry import STRATEGIES, parse_strategy
from rag_train.training.recipe import SFTRecipe
from rag_train.training.result import RESULT

WITHOUT = ("levelrag-web",)
"""Strategies left out: nothing here is on the web."""
TOKENS = "tokens.json"
"""File of the tokens that each method's examples have."""


class Job(NamedTuple):
    """A strategy and the questions of a set that it answers."""

    strategy: str
    questions: str
    """Name of the set."""
    asked: list[Question]


@dataclass(frozen=True)
class Row:
    """One strategy's result on one set of questions."""

    seed: int
    model: str
    questions: str
    summary: RunSummary
    failed: int
    seconds: float
    """Time to answer in the run that wrote this row; close to 0 if all answers were there already."""


def run(recipe: RealRecipe, seeds: Sequence[int], data: Path | None, work: Path, output: Path) -> None:
    """Run every seed, print the tables, and write ``real.json``, or ``real_files.json`` with ``data``.

    The file is written after each seed. Seeds that it has already, from another day or machine, stay in it.

    Raises:
        UserError: for a strategy that does not exist, and for a file with other settings.
    """
    for name in (*recipe.untuned, *(recipe.tuned or ())):
        parse_strategy(name)
    path = output / ("real_files.json" if data else "real.json")

    def run_seed(seed: int) -> dict[str, Any]:
        rows, tokens = asyncio.run(_run_seed(recipe, seed, data, work))
        listed = [asdict(row) | {"summary": row.summary.model_dump(mode="json")} for row in rows]
        return {"tokens": tokens, "rows": listed}

    every = [row for found in run_by_seed(path, asdict(recipe), seeds, run_seed).values() for row in found["rows"]]
    for name in dict.fromkeys(row["questions"] for row in every):
        summaries = [RunSummary.model_validate(row["summary"]) for row in every if row["questions"] == name]
        console.print(f"[bold]{name}[/bold]")
        console.print(main_table(pool(summaries)))


async def _run_seed(
    recipe: RealRecipe, seed: int, data: Path | None, work: Path
) -> tuple[list[Row], dict[str, int]]:
    key = hashlib.sha256(json.dumps([asdict(recipe), str(data or "")], sort_keys=True).encode()).hexdigest()[:8]
    folder = work / f"seed{seed}-{key}"
    model = checkpoint_of(recipe.model, work)
    world = open_files(data, seed) if data else open_atlas(recipe.split, seed)
    retriever = AsyncRetriever(world.index)
    rows: list[Row] = []
    for name, directory in (("untuned", model), ("tuned", folder / "tuned")):
        if name == "tuned" and not (directory / RESULT).is_file():
            await _tune(recipe, seed, world, retriever, model, folder)
        every = [strategy for strategy in STRATEGIES if strategy not in WITHOUT]
        strategies = recipe.untuned if name == "untuned" else recipe.tuned or every
        jobs = [
            Job(strategy, questions, asked[: recipe.sample.get(strategy, recipe.questions)])
            for strategy in strategies
            for questions, asked in world.asked.items()
        ]
        answers = folder / "answers" / name
        async for job, trajectories, seconds in _answer(recipe, seed, directory, retriever, jobs, answers):
            rows.append(_row(seed, name, job, trajectories, seconds))
    return rows, json.loads((folder / TOKENS).read_text())


async def _tune(
    recipe: RealRecipe, seed: int, world: RealWorld, retriever: AsyncRetriever, model: Path, folder: Path
) -> None:
    """Train the model ``folder / "tuned"`` on `equal_shares` of all methods' examples."""
    settings = recipe.lessons
    asked = world.train[: settings.questions]
    async with aclosing(_engine(recipe, model, seed)) as engine:
        asked = await world.annotate(engine, asked, folder / "known.jsonl")
        cold = folder / "cold_start.jsonl"
        await search("cold_start", model, asked, cold, seed, engine, retriever, world.index.corpus_sha256)
        tokenizer = engine.tokenizer
    examples = await gold_examples(asked, retriever, recipe.passages)
    examples["deeprag"] = read_records(cold, SFTRecord)
    drawn, tokens = equal_shares(examples, tokenizer, recipe.tokens, seed)
    data = folder / "lessons.jsonl"
    write_records(data, drawn)
    write_text(folder / TOKENS, json.dumps(tokens))
    assert settings.batch_size == 1 and settings.pack_tokens, "rows are packed"
    await asyncio.to_thread(
        fine_tune,
        "sft",
        model,
        data,
        folder / "tuned",
        seed,
        lr=settings.lr,
        epochs=settings.epochs,
        lora=settings.lora,
        save_steps=100,
        logging_steps=5,
        sft=SFTRecipe(pack_tokens=settings.pack_tokens),
    )


async def _answer(
    recipe: RealRecipe, seed: int, model: Path, retriever: AsyncRetriever, jobs: Sequence[Job], folder: Path
) -> AsyncIterator[tuple[Job, list[Trajectory], float]]:
    """Yield each job with its trajectories and the seconds that it took; an engine starts only if it is needed."""
    async with AsyncExitStack() as stack:
        engines: dict[bool, LLM] = {}
        for job in jobs:
            answers = Answers(folder, job.strategy, {"model": str(model), "questions": job.questions})
            began = time.perf_counter()
            if answers.missing(job.asked):
                attention = needs_attention(job.strategy)
                if attention not in engines:
                    opened = TransformersEngine.start(str(model)) if attention else _engine(recipe, model, seed)
                    engines[attention] = await stack.enter_async_context(aclosing(opened))
                kit = Kit(
                    engines[attention],
                    retriever,
                    recipe.passages,
                    instructions=folder.name == "untuned",
                    retrievers=dict.fromkeys(RETRIEVER_KINDS, retriever),
                )
                await answers.ask(kit, job.asked)
            yield job, answers.of(job.asked), time.perf_counter() - began


def _row(seed: int, model: str, job: Job, trajectories: list[Trajectory], seconds: float) -> Row:
    return Row(
        seed=seed,
        model=model,
        questions=job.questions,
        summary=summarize(job.asked, trajectories, strategy=job.strategy, stage=model, seed=seed),
        failed=sum(t.error is not None for t in trajectories),
        seconds=seconds,
    )


def _engine(recipe: RealRecipe, model: Path, seed: int) -> VLLMEngine:
    return VLLMEngine.start(str(model), seed=seed, max_context=recipe.max_context)
