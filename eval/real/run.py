"""Every strategy on a real model: one model, one corpus, the same questions.

Per seed, the starting model is tuned on gold examples of all methods, the same number of tokens for each. The tuned
model answers with every strategy, the untuned one with the strategies that the recipe names. Questions that were
answered before are not asked again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rag_train.atlas.knowledge import with_knowledge
from rag_train.eval.by_seed import run_by_seed
from rag_train.eval.demo.stages import fine_tune, search
from rag_train.eval.matrix.answers import Answers, needs_attention
from rag_train.eval.matrix.tables import cause_table, decision_table, main_table
from rag_train.eval.metrics.scores import score
from rag_train.eval.metrics.summary import RunSummary, pool, summarize
from rag_train.eval.real.examples import equal_shares, gold_examples
from rag_train.eval.real.gains import gains_table
from rag_train.eval.real.recipe import RealRecipe
from rag_train.eval.real.world import RealWorld, open_atlas, open_files
from rag_train.files import read_records, write_records, write_text
from rag_train.llm.base import LLM
from rag_train.llm.packaged import checkpoint_of
from rag_train.llm.transformers import TransformersEngine
from rag_train.llm.vllm import VLLMEngine
from rag_train.progress import console, progress, up_to
from rag_train.provenance import settings_hash, weights_sha256
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.index.dense import DenseIndex, build_dense
from rag_train.retrieval.index.lucene import LuceneIndex, build_lucene
from rag_train.schema import Question, SFTRecord, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import STRATEGIES, parse_strategy
from rag_train.table import Table
from rag_train.training.recipe import SFTRecipe
from rag_train.training.result import RESULT

WITHOUT = {
    "levelrag-web": "nothing here is on the web",
    "self-rag": "its reflection tokens are words of its own checkpoint's vocabulary",
    "plan-selfrag": "its reflection tokens are words of its own checkpoint's vocabulary",
    "search-r1": "it is learned by reinforcement, and there are no examples",
    "cot-retrieve": "without instructions its prompts are those of cot-rag",
    "fireact": "without instructions its prompts are those of react",
}
"""Strategies that the tuned model does not answer with, and why."""
TOKENS = "tokens.json"
"""File of the tokens that each method's examples have."""
KNOWN = "known.json"
"""File of what the starting model knows of the facts behind the questions, by subquery."""
KEPT = "known_by_tuned.json"
"""The same of the tuned model."""


class Job(NamedTuple):
    """A strategy and the questions of a set that it answers."""

    strategy: str
    questions: str
    """Name of the set."""
    asked: list[Question]


@dataclass(frozen=True)
class Row:
    """One strategy's result on one set of questions.

    Attributes:
        em: exact match of each question, by its id.
        seconds: time to answer in the run that wrote this row; close to 0 if all answers were there already.
    """

    seed: int
    model: str
    questions: str
    summary: RunSummary
    em: dict[str, float]
    failed: int
    seconds: float


@dataclass(frozen=True)
class Retrievers:
    """The retrievers of a corpus: BM25 for all strategies, and those of LevelRAG's searchers."""

    bm25: AsyncRetriever
    by_kind: dict[str, AsyncRetriever]
    corpus_sha256: str


def run(recipe: RealRecipe, seeds: Sequence[int], data: Path | None, work: Path, output: Path) -> dict[str, Table]:
    """Run every seed, print the tables, and write ``real.json``, or ``real_files.json`` with ``data``.

    Returns the table of what tuning is worth, by set of questions. The file is written after each seed. Seeds that
    it has already, from another day or machine, stay in it.

    Raises:
        UserError: for a strategy that does not exist, and for a file with other settings.
    """
    for name in (*recipe.untuned, *(recipe.tuned or ())):
        parse_strategy(name)
    path = output / ("real_files.json" if data else "real.json")

    def run_seed(seed: int) -> dict[str, Any]:
        rows, tokens, knowledge = asyncio.run(_run_seed(recipe, seed, data, work))
        listed = [asdict(row) | {"summary": row.summary.model_dump(mode="json")} for row in rows]
        return {"tokens": tokens, "knowledge": knowledge, "rows": listed}

    settings = asdict(recipe) | {"without": WITHOUT}
    every = [row for found in run_by_seed(path, settings, seeds, run_seed).values() for row in found["rows"]]
    gains: dict[str, Table] = {}
    for name in dict.fromkeys(row["questions"] for row in every):
        rows = [row for row in every if row["questions"] == name]
        summaries = pool([RunSummary.model_validate(row["summary"]) for row in rows])
        console.print(f"[bold]{name}[/bold]")
        for table in (main_table, decision_table, cause_table):
            console.print(table(summaries))
        gains[name] = gains_table(rows)
        console.print(gains[name])
    return gains


async def _run_seed(
    recipe: RealRecipe, seed: int, data: Path | None, work: Path
) -> tuple[list[Row], dict[str, int], dict[str, int]]:
    """Return the rows of a seed, the tokens of each method's examples, and `knowledge_kept`."""
    made_with = asdict(replace(recipe, sample={}, untuned=[], tuned=None)) | {"data": str(data or "")}
    folder = work / f"seed{seed}-{settings_hash(made_with)}"
    model = checkpoint_of(recipe.model, work)
    world = open_files(data, seed) if data else open_atlas(recipe.split, seed)
    strategies = {
        "untuned": recipe.untuned,
        "tuned": recipe.tuned or [strategy for strategy in STRATEGIES if strategy not in WITHOUT],
    }
    by_kind = any("levelrag" in name for names in strategies.values() for name in names)
    retrievers = _retrievers(world, work, by_kind)
    if not (folder / "tuned" / RESULT).is_file():
        await _tune(recipe, seed, world, retrievers, model, folder)
    before = json.loads((folder / KNOWN).read_text())
    if before and not (folder / KEPT).is_file():
        async with aclosing(_engine(recipe, folder / "tuned", seed)) as engine:
            after = await world.measure(engine, _asked(recipe, world), folder / "asked_facts_tuned.jsonl")
        write_text(folder / KEPT, json.dumps(after))
    after = json.loads((folder / KEPT).read_text()) if before else {}
    known = {fact: value for fact, value in before.items() if value is not None}
    rows: list[Row] = []
    for name, directory in (("untuned", model), ("tuned", folder / "tuned")):
        jobs = [
            Job(strategy, questions, asked[: recipe.sample.get(strategy.partition(",")[0], recipe.questions)])
            for strategy in strategies[name]
            for questions, asked in world.asked.items()
        ]
        async for job, trajectories, seconds in _answer(
            recipe, seed, directory, retrievers, jobs, folder / "answers" / name
        ):
            rows.append(_row(seed, name, job, trajectories, known, seconds))
    return rows, json.loads((folder / TOKENS).read_text()), knowledge_kept(before, after)


def knowledge_kept(before: Mapping[str, bool | None], after: Mapping[str, bool | None]) -> dict[str, int]:
    """Count the facts that the starting model knows and does not know, and how many of each the tuned model knows.

    Facts on which a model's answers disagree are counted in ``facts`` only.
    """
    counts = {"facts": len(before)}
    for name, value in (("known", True), ("unknown", False)):
        those = [fact for fact in before if before[fact] is value]
        counts |= {name: len(those), f"{name}_then_known": sum(after[fact] is True for fact in those)}
    return counts


def _retrievers(world: RealWorld, work: Path, by_kind: bool) -> Retrievers:
    """Index the corpus; with ``by_kind`` also for LevelRAG's searchers, on disk, where later runs find it."""
    bm25 = BM25Index.build(world.corpus)
    found: dict[str, AsyncRetriever] = {}
    if by_kind:
        folder = work / f"indexes-{bm25.corpus_sha256[:8]}"
        if not (folder / "sparse").exists():
            build_lucene(world.corpus, folder / "sparse")
        if not (folder / "dense").exists():
            with progress("encoding passages", len(world.corpus)) as advance:
                build_dense(world.corpus, folder / "dense", progress=up_to(advance))
        found["sparse"] = AsyncRetriever(LuceneIndex.load(folder / "sparse"))
        found["dense"] = AsyncRetriever(DenseIndex.load(folder / "dense"))
    return Retrievers(AsyncRetriever(bm25), found, bm25.corpus_sha256)


async def _tune(
    recipe: RealRecipe, seed: int, world: RealWorld, retrievers: Retrievers, model: Path, folder: Path
) -> None:
    """Measure what ``model`` knows, and train ``folder / "tuned"`` on `equal_shares` of all methods' examples."""
    settings = recipe.lessons
    lessons = world.train[: settings.questions]
    asked = _asked(recipe, world)
    bm25, sha256 = retrievers.bm25, retrievers.corpus_sha256
    async with aclosing(_engine(recipe, model, seed)) as engine:
        write_text(folder / KNOWN, json.dumps(await world.measure(engine, asked, folder / "asked_facts.jsonl")))
        lessons = with_knowledge(lessons, await world.measure(engine, lessons, folder / "lesson_facts.jsonl"))
        cold = folder / "cold_start.jsonl"
        await search("cold_start", model, lessons, cold, seed, engine, bm25, sha256)
        tokenizer = engine.tokenizer
    examples = await gold_examples(lessons, bm25, recipe.passages)
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


def _asked(recipe: RealRecipe, world: RealWorld) -> list[Question]:
    """Return the questions of all sets."""
    return [question for questions in world.asked.values() for question in questions[: recipe.questions]]


async def _answer(
    recipe: RealRecipe, seed: int, model: Path, retrievers: Retrievers, jobs: Sequence[Job], folder: Path
) -> AsyncIterator[tuple[Job, list[Trajectory], float]]:
    """Yield each job with its trajectories and the seconds that it took; an engine starts only if it is needed."""
    weights = weights_sha256(str(model))
    async with AsyncExitStack() as stack:
        engines: dict[bool, LLM] = {}
        for job in jobs:
            answers = Answers(folder, job.strategy, {"weights": weights, "questions": job.questions})
            began = time.perf_counter()
            if answers.missing(job.asked):
                attention = needs_attention(job.strategy)
                if attention not in engines:
                    opened = TransformersEngine.start(str(model)) if attention else _engine(recipe, model, seed)
                    engines[attention] = await stack.enter_async_context(aclosing(opened))
                kit = Kit(
                    engines[attention],
                    retrievers.bm25,
                    recipe.passages,
                    instructions=folder.name == "untuned",
                    retrievers=retrievers.by_kind,
                )
                await answers.ask(kit, job.asked)
            yield job, answers.of(job.asked), time.perf_counter() - began


def _row(
    seed: int, model: str, job: Job, trajectories: list[Trajectory], known: dict[str, bool], seconds: float
) -> Row:
    scores = score(job.asked, trajectories)
    return Row(
        seed=seed,
        model=model,
        questions=job.questions,
        summary=summarize(
            job.asked,
            trajectories,
            strategy=job.strategy,
            stage=model,
            seed=seed,
            known=known if known and job.strategy.startswith("deeprag") else None,
            scores=scores,
        ),
        em={each.question_id: each.em for each in scores},
        failed=sum(t.error is not None for t in trajectories),
        seconds=seconds,
    )


def _engine(recipe: RealRecipe, model: Path, seed: int) -> VLLMEngine:
    return VLLMEngine.start(str(model), seed=seed, max_context=recipe.max_context)
