"""The demo: DeepRAG end to end, from a starting model to a page of results.

Per seed: a cold start, which teaches the format, the search of the model's knowledge boundary, Stage I (imitation),
Stage II (calibration), and the evaluation of every stage. The demo uses the same engine, index and trainers as any
other run. Steps that were completed earlier under the same recipe are read from the work directory.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rag_train.eval.demo.claims import (
    CLAIMS,
    FIRST,
    LAST,
    MINI_WORLD_CLAIMS,
    Compared,
    PairedClaim,
    clusters,
    pooled,
)
from rag_train.eval.demo.recipe import DemoRecipe, StageRecipe
from rag_train.eval.demo.stages import Data, Stage, fine_tune, search
from rag_train.eval.demo.world import Known, open_world
from rag_train.eval.matrix.answers import Answers
from rag_train.eval.matrix.tables import cause_table, decision_table, hops_table, main_table
from rag_train.eval.metrics.boundary import DecisionCounts, fact_counts, paired_bootstrap_mcc
from rag_train.eval.metrics.intervals import Interval, paired_bootstrap
from rag_train.eval.metrics.scores import Score, score
from rag_train.eval.metrics.summary import RunSummary, pool, summarize
from rag_train.eval.pages.results import (
    Claim,
    Curve,
    Example,
    Provenance,
    ReportData,
    Series,
    Timing,
    save_results,
    write_report,
)
from rag_train.eval.peak_memory import peak_memory
from rag_train.llm.vllm import VLLMEngine
from rag_train.miniworld.text import VERSION
from rag_train.progress import console
from rag_train.provenance import code_version, machine, settings_hash, weights_sha256
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.training.recipe import DPORecipe, SFTRecipe
from rag_train.training.result import TrainResult


@dataclass
class SeedResult:
    """Results of one seed. ``trajectories`` is keyed by "strategy, stage"; ``known`` by subquery."""

    runs: list[RunSummary]
    trajectories: dict[str, list[Trajectory]]
    questions: list[Question]
    known: Known
    curves: list[Curve]
    timings: dict[str, float]


def run_demo(
    recipe: DemoRecipe, seeds: Sequence[int], work: Path, output: Path, *, scratch: bool = False
) -> ReportData:
    """Run every seed, write ``demo.json`` and ``demo.html`` to ``output``, and print the tables."""
    start = time.perf_counter()
    with peak_memory() as peak:
        results = [asyncio.run(run_seed(recipe, seed, work, scratch)) for seed in seeds]
    runs = [run for result in results for run in result.runs]
    first = results[0]
    decided = claims(results, one_world=recipe.atlas is not None)
    data = ReportData(
        title=f"DeepRAG in the {'atlas' if recipe.atlas else 'mini world'}",
        in_mini_world=recipe.miniworld is not None,
        summary=_summary(recipe, seeds, results),
        claims=[Claim(text=claim.text, held=claim.held, evidence=claim.evidence) for claim in decided],
        runs=runs,
        curves=first.curves,
        timings=_timings([result.timings for result in results], time.perf_counter() - start),
        peak_gib=peak.gib,
        examples=_examples(first, (FIRST, "stage 1", LAST)),
        provenance=_provenance(recipe, seeds),
    )
    output.mkdir(parents=True, exist_ok=True)
    save_results(output / "demo.json", data)
    write_report(output / "demo.html", data)
    summaries = pool(runs)
    for table in (main_table, decision_table, hops_table, cause_table):
        console.print(table(summaries))
    if found := data.placed():
        console.print("One seed cannot decide a claim: the verdicts are those of the reference seeds.")
    for claim in decided:
        console.print(found[claim.text].line(claim.text) if claim.text in found else claim.line(), markup=False)
    cost = f"{time.perf_counter() - start:.0f} s, {peak.gib:.1f} GiB at the peak"
    console.print(f"wrote {output / 'demo.html'} and demo.json ({cost})")
    return data


async def run_seed(recipe: DemoRecipe, seed: int, work: Path, scratch: bool) -> SeedResult:
    """Run one seed; steps that are completed in ``work`` are not repeated."""
    began = time.perf_counter()
    folder = folder_of(recipe, seed, work)
    world = open_world(recipe, seed, folder, work, scratch)
    retriever = AsyncRetriever(world.index)
    timings = {"world, index and starting model": time.perf_counter() - began}
    step = _timer(timings, seed)
    known: Known = {}
    trajectories: dict[str, list[Trajectory]] = {}
    summaries: list[RunSummary] = []

    @asynccontextmanager
    async def serving(model: Path) -> AsyncIterator[VLLMEngine]:
        with step("engine starts"):
            engine = VLLMEngine.start(str(model), seed=seed, **world.engine)
        try:
            yield engine
        finally:
            await engine.aclose()

    async def answer(
        engine: VLLMEngine, stage: str, model: Path, strategies: Sequence[str], threshold: float = 0.5
    ) -> None:
        with step(f"answering, {stage}"):
            for name in strategies:
                kit = Kit(engine, retriever, instructions=name in world.instructed)
                strategy = f"{name},threshold={threshold}" if name == "deeprag" else name
                kept = Answers(folder / "answers", strategy, {"weights": weights_sha256(str(model))})
                trajectories[f"{name}, {stage}"] = await kept.ask(kit, world.asked)
        for name in strategies:
            summaries.append(
                summarize(
                    world.asked,
                    trajectories[f"{name}, {stage}"],
                    strategy=name,
                    stage=stage,
                    seed=seed,
                    cot=trajectories.get(f"cot, {FIRST}"),
                    known=known if name.startswith("deeprag") else None,
                )
            )

    async def make_data(engine: VLLMEngine, data: Data, model: Path, questions: list[Question]) -> Path:
        output, corpus = folder / f"{data}.jsonl", world.index.corpus_sha256
        more = {"search": recipe.search, "cold_start": world.cold_start}
        with step(f"data, {data}"):
            return await search(data, model, questions, output, seed, engine, retriever, corpus, **more)

    def train(stage: Stage, settings: StageRecipe, model: Path, data: Path, name: str) -> TrainResult:
        with step(f"training, {name}"):
            return train_stage(stage, settings, model, data, folder / name.replace(" ", ""), seed)

    async with serving(world.model) as engine:
        if world.chat_template:
            engine.tokenizer.chat_template = world.chat_template
        with step("knowledge"):
            known |= await world.known(engine, folder / "known.jsonl")
        records = await make_data(engine, "cold_start", world.model, world.training.cold_start)
    cold = train("sft", recipe.cold_start, world.model, records, FIRST)
    async with serving(folder / "coldstart") as engine:
        baselines = [*world.instructed, "direct", "rag"]
        await answer(engine, FIRST, folder / "coldstart", [*baselines, "deeprag", "deeprag-retrieve"])
        records = await make_data(engine, "sft", folder / "coldstart", world.training.stage1)
    stage1 = train("sft", recipe.stage1, folder / "coldstart", records, "stage 1")
    async with serving(folder / "stage1") as engine:
        await answer(engine, "stage 1", folder / "stage1", ["deeprag"], recipe.thresholds.stage1)
        pairs = await make_data(engine, "pairs", folder / "stage1", world.training.stage2)
    stage2 = train("dpo", recipe.stage2, folder / "stage1", pairs, LAST)
    async with serving(folder / "stage2") as engine:
        strategies = ["deeprag", "deeprag-retrieve", "deeprag-parametric"]
        await answer(engine, LAST, folder / "stage2", strategies, recipe.thresholds.stage2)
    curves = [
        *world.curves,
        _curve("Cold start", cold, "loss"),
        _curve("Stage I, imitation learning", stage1, "loss"),
        _curve("Stage II, chain of calibration", stage2, "loss", "rewards/margins"),
    ]
    return SeedResult(summaries, trajectories, world.asked, known, curves, timings)


def folder_of(recipe: DemoRecipe, seed: int, work: Path) -> Path:
    """Return the folder in ``work`` of a seed's data and models, named by the recipe.

    The name also depends on the version of the mini model's text. Thresholds have no influence on data and models.
    """
    keys = {name: value for name, value in asdict(recipe).items() if name != "thresholds"}
    if recipe.miniworld is not None:
        keys["text"] = VERSION
    return work / f"seed{seed}-{settings_hash(keys)}"


def train_stage(
    stage: Stage, settings: StageRecipe, model: Path, data: Path, output: Path, seed: int
) -> TrainResult:
    """Train ``model`` on the records of a stage; see `fine_tune`."""
    packed = settings.pack_tokens is not None
    batch = 1 if packed else math.gcd(settings.batch_size, 4)  # small batches need little memory
    return fine_tune(
        stage,
        model,
        data,
        output,
        seed,
        lr=settings.lr,
        epochs=settings.epochs,
        batch_size=batch,
        gradient_accumulation=settings.batch_size // batch,
        balance=settings.balance,
        lora=settings.lora,
        save_steps=100,
        logging_steps=5,
        sft=SFTRecipe(pack_tokens=settings.pack_tokens) if stage == "sft" else None,
        dpo=_dpo(settings) if stage == "dpo" else None,
    )


def _dpo(settings: StageRecipe) -> DPORecipe:
    return DPORecipe(beta=settings.beta, sft_weight=settings.sft_weight, layout=settings.layout)


def _timings(seeds: Sequence[Mapping[str, float]], total: float) -> list[Timing]:
    """Return the seconds of each part over all seeds, and of everything else; together they are ``total``."""
    parts = {part: sum(timings[part] for timings in seeds) for part in seeds[0]}
    parts["everything else"] = max(0.0, total - sum(parts.values()))
    return [Timing(part=part, seconds=seconds) for part, seconds in parts.items()]


def _timer(timings: dict[str, float], seed: int) -> Callable[[str], Any]:
    """Return a context manager that announces a part of the run and adds its seconds to ``timings``."""

    @contextmanager
    def step(part: str):
        console.print(f"[bold]{part}[/bold] (seed {seed})")
        start = time.perf_counter()
        yield
        timings[part] = timings.get(part, 0.0) + time.perf_counter() - start

    return step


def claims(results: Sequence[SeedResult], *, one_world: bool = False) -> list[PairedClaim]:
    """Return the claims, decided over the questions of all seeds.

    ``one_world``: whether all seeds ask about the same entities, which is so in the atlas.
    """
    about = clusters([result.questions for result in results], one_world=one_world)

    def scores(name: str) -> list[Score]:
        return pooled([score(result.questions, result.trajectories[name]) for result in results])

    def decisions(name: str) -> list[DecisionCounts]:
        return [c for result in results for c in fact_counts(result.trajectories[name], result.known)]

    def difference(claim: Compared) -> Interval:
        if claim.measure == "mcc":
            return paired_bootstrap_mcc(decisions(claim.first), decisions(claim.second), about)
        return paired_bootstrap(scores(claim.first), scores(claim.second), claim.measure, about)

    claimed = CLAIMS if one_world else MINI_WORLD_CLAIMS
    return [PairedClaim(text, difference(claim), claim.unit, claim.margin) for text, claim in claimed.items()]


def _curve(title: str, result: TrainResult, *keys: str) -> Curve:
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


def _examples(result: SeedResult, stages: Sequence[str], count: int = 6) -> list[Example]:
    """Return the first question of each type and number of hops, with the trajectories of every stage."""
    chosen: dict[tuple[str, int | None], int] = {}
    for i, question in enumerate(result.questions):
        chosen.setdefault((question.type, question.hops), i)
    names = [f"deeprag, {stage}" for stage in stages]
    return [
        Example(
            question=result.questions[i],
            trajectories={name: result.trajectories[name][i] for name in names},
            known={
                step.subquery: result.known[step.subquery]
                for name in names
                for step in result.trajectories[name][i].steps
                if step.subquery in result.known
            },
        )
        for i in list(chosen.values())[:count]
    ]


def _summary(recipe: DemoRecipe, seeds: Sequence[int], results: Sequence[SeedResult]) -> str:
    facts = [
        result.known[subquery]
        for result in results
        for subquery in {step.subquery for question in result.questions for step in question.decomposition}
        if subquery in result.known
    ]
    share = f"{sum(facts) / len(facts):.0%}" if facts else "none"
    if recipe.miniworld is not None:
        layers = recipe.miniworld.pretrain.layers
        model = f"A {layers}-layer language model, trained from scratch on the text of a made-up world"
        knowledge = f"Of the facts behind the questions, it knows {share}."
    else:
        assert recipe.atlas is not None
        model = f"{recipe.atlas.model}, a pretrained model, and real facts about places and elements"
        knowledge = f"Of the facts behind the questions on which its answers agree, it knows {share}."
    return (
        f"{model}. {knowledge} A cold start teaches it the format, with random decisions. Tree search explores its "
        f"knowledge boundary, which it then learns by imitation (Stage I) and by calibration (Stage II). "
        f"{recipe.test_questions} multi-hop {recipe.split} questions, "
        f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}."
    )


def _provenance(recipe: DemoRecipe, seeds: Sequence[int]) -> Provenance:
    import yaml

    info = machine()
    hardware = ("processor", "cores", "memory_gib", "system")
    return Provenance(
        machine=", ".join(f"{name} {info[name]}" for name in hardware if name in info),
        code_version=code_version(),
        versions={name: value for name, value in info.items() if name not in hardware},
        seeds=list(seeds),
        recipe=yaml.safe_dump(json.loads(json.dumps(asdict(recipe))), sort_keys=False),
    )
