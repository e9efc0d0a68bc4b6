"""The demo: DeepRAG end to end in the mini world, from the base model to a page of results.

Per seed: pretrain the mini model, search its knowledge boundary, train Stage I (imitation) and Stage II
(calibration), evaluate every stage. The demo uses the same engine, index and trainers as any other run. Steps that
were completed earlier under the same recipe are read from the work directory.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rag_train.data_synth.deeprag.search import SearchConfig
from rag_train.eval.matrix.answers import Answers
from rag_train.eval.matrix.tables import decision_table, hops_table, main_table
from rag_train.eval.metrics.boundary import DecisionCounts, fact_counts, paired_bootstrap_mcc
from rag_train.eval.metrics.intervals import paired_bootstrap
from rag_train.eval.metrics.scores import Metric, Score, score
from rag_train.eval.metrics.summary import RunSummary, pool, summarize
from rag_train.eval.miniworld.claims import MARGIN, PairedClaim, clusters, pooled
from rag_train.eval.miniworld.deeprag import fine_tune, search
from rag_train.eval.miniworld.lab import multi_hop
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
from rag_train.llm.vllm import VLLMEngine
from rag_train.miniworld.pretrain import RECORD, PretrainConfig, pretrained
from rag_train.miniworld.world import World, WorldConfig, known_subqueries, write_world
from rag_train.progress import console
from rag_train.provenance import code_version, machine
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.training.recipe import DPORecipe
from rag_train.training.result import TrainResult

STAGES = ("base", "stage 1", "stage 2")


@dataclass(frozen=True, kw_only=True)
class StageRecipe:
    """Settings of one stage's training; all others have the defaults of `rag_train.training.recipe`."""

    questions: int
    """Training questions to search."""
    lr: float
    """Peak learning rate."""
    epochs: float
    """Passes over the data."""
    batch_size: int
    """Examples per optimizer step."""
    beta: float = 0.4
    """dpo: weight of the penalty for departing from the reference model."""
    sft_weight: float = 0.0
    """dpo: weight of an additional imitation loss on the chosen snippet."""
    balance: bool = False
    """dpo: train on equally many pairs for each decision."""


@dataclass(frozen=True, kw_only=True)
class DemoRecipe:
    """Sizes and settings of the demo."""

    stage1: StageRecipe
    """Imitation learning."""
    stage2: StageRecipe
    """Chain of calibration."""
    test_questions: int = 300
    """Multi-hop questions to answer."""
    split: str = "test"
    """Split of the questions to answer: dev to choose settings, test to report."""
    world: WorldConfig = field(default_factory=WorldConfig)
    """The world; the demo's seed replaces its seed."""
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    """The mini model's pretraining; the demo's seed replaces its seed."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """The tree search (DeepRAG, Algorithm 1)."""


@dataclass
class SeedResult:
    """Results of one seed. ``trajectories`` is keyed by "strategy, stage"; ``known`` by subquery."""

    runs: list[RunSummary]
    trajectories: dict[str, list[Trajectory]]
    questions: list[Question]
    known: dict[str, bool]
    curves: list[Curve]
    timings: dict[str, float]


def run_demo(
    recipe: DemoRecipe, seeds: Sequence[int], work: Path, output: Path, *, scratch: bool = False
) -> ReportData:
    """Run every seed, write ``demo.json`` and ``demo.html`` to ``output``, and print the tables."""
    start = time.perf_counter()
    results = [asyncio.run(_run_seed(recipe, seed, work, scratch)) for seed in seeds]
    runs = [run for result in results for run in result.runs]
    first = results[0]
    decided = claims(results)
    data = ReportData(
        title="DeepRAG in the mini world",
        summary=_summary(recipe, seeds),
        claims=[Claim(text=claim.text, held=claim.held, evidence=claim.evidence) for claim in decided],
        runs=runs,
        curves=first.curves,
        timings=[
            Timing(part=part, seconds=sum(result.timings[part] for result in results)) for part in first.timings
        ]
        + [Timing(part="everything", seconds=time.perf_counter() - start)],
        examples=_examples(first),
        provenance=_provenance(recipe, seeds),
    )
    output.mkdir(parents=True, exist_ok=True)
    save_results(output / "demo.json", data)
    write_report(output / "demo.html", data)
    summaries = pool(runs)
    for table in (main_table(summaries), decision_table(summaries), hops_table(summaries)):
        console.print(table)
    for claim in decided:
        console.print(claim.line())
    console.print(f"wrote {output / 'demo.html'} and demo.json in {time.perf_counter() - start:.0f} s")
    return data


async def _run_seed(recipe: DemoRecipe, seed: int, work: Path, scratch: bool) -> SeedResult:
    world = World(replace(recipe.world, seed=seed))
    config = replace(recipe.pretrain, seed=seed)
    timings: dict[str, float] = {}
    step = _timer(timings, seed)
    key = hashlib.sha256(json.dumps(asdict(recipe), sort_keys=True).encode()).hexdigest()[:8]
    folder = work / f"seed{seed}-{key}"

    with step("world and index"):
        write_world(world, folder / "world")
        index = BM25Index.build(world.corpus())
        retriever = AsyncRetriever(index)
        questions = {split: multi_hop(world.questions(split)) for split in ("train", recipe.split)}
        known = known_subqueries(world)
    with step("mini model"):
        base, _ = pretrained(world, config, work / "base", scratch=scratch)
    asked = questions[recipe.split][: recipe.test_questions]
    trajectories: dict[str, list[Trajectory]] = {}
    summaries: list[RunSummary] = []

    @asynccontextmanager
    async def serving(model: Path) -> AsyncIterator[VLLMEngine]:
        with step("engine starts"):
            engine = VLLMEngine.start(str(model), dtype="float32", seed=seed, kv_cache_bytes=2**29)
        try:
            yield engine
        finally:
            await engine.aclose()

    async def answer(engine: VLLMEngine, stage: str, model: Path, strategies: Sequence[str]) -> None:
        kit = Kit(engine, retriever, instructions=False)
        for name in strategies:
            kept = Answers(folder / "answers", name, {"model": str(model)})
            trajectories[f"{name}, {stage}"] = await kept.ask(kit, asked)
        for name in strategies:
            summaries.append(
                summarize(
                    asked,
                    trajectories[f"{name}, {stage}"],
                    strategy=name,
                    stage=stage,
                    seed=seed,
                    cot=trajectories["cot, base"],
                    known=known if name.startswith("deeprag") else None,
                )
            )

    async def make_data(
        engine: VLLMEngine, stage: Literal["sft", "pairs"], model: Path, sample: list[Question]
    ) -> Path:
        output, corpus = folder / f"{stage}.jsonl", index.corpus_sha256
        return await search(stage, model, sample, output, seed, engine, retriever, corpus, search=recipe.search)

    first, second = recipe.stage1, recipe.stage2
    async with serving(base) as engine:
        with step("evaluating the base model"):
            await answer(engine, "base", base, ["cot", "direct", "rag", "deeprag", "deeprag-retrieve"])
        with step("stage 1 search"):
            records = await make_data(engine, "sft", base, questions["train"][: first.questions])
    with step("stage 1 training"):
        stage1 = _train("sft", first, base, records, folder / "stage1", seed)
    async with serving(folder / "stage1") as engine:
        with step("stage 2 search"):
            later = questions["train"][first.questions : first.questions + second.questions]
            pairs = await make_data(engine, "pairs", folder / "stage1", later)
        with step("evaluating stage 1"):
            await answer(engine, "stage 1", folder / "stage1", ["deeprag"])
    with step("stage 2 training"):
        stage2 = _train("dpo", second, folder / "stage1", pairs, folder / "stage2", seed)
    async with serving(folder / "stage2") as engine:
        with step("evaluating stage 2"):
            strategies = ["deeprag", "deeprag-retrieve", "deeprag-parametric"]
            await answer(engine, "stage 2", folder / "stage2", strategies)
    curves = _curves(json.loads((base / RECORD).read_text()), stage1, stage2)
    return SeedResult(summaries, trajectories, asked, known, curves, timings)


def _train(
    stage: Literal["sft", "dpo"], settings: StageRecipe, model: Path, data: Path, output: Path, seed: int
) -> TrainResult:
    batch = math.gcd(settings.batch_size, 4)  # small batches need little memory
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
        save_steps=100,
        logging_steps=5,
        dpo=DPORecipe(beta=settings.beta, sft_weight=settings.sft_weight) if stage == "dpo" else None,
    )


def _timer(timings: dict[str, float], seed: int) -> Callable[[str], Any]:
    """Return a context manager that announces a part of the run and adds its seconds to ``timings``."""

    @contextmanager
    def step(part: str):
        console.print(f"[bold]{part}[/bold] (seed {seed})")
        start = time.perf_counter()
        yield
        timings[part] = timings.get(part, 0.0) + time.perf_counter() - start

    return step


def claims(results: Sequence[SeedResult]) -> list[PairedClaim]:
    """Return the paper's claims (Tables 1 to 3, Figure 5), decided over the questions of all seeds."""
    about = clusters([result.questions for result in results])

    def scores(name: str) -> list[Score]:
        return pooled([score(result.questions, result.trajectories[name]) for result in results])

    def decisions(name: str) -> list[DecisionCounts]:
        return [c for result in results for c in fact_counts(result.trajectories[name], result.known)]

    def claim(text: str, first: str, second: str, metric: Metric, unit: str, margin: float = 0.0) -> PairedClaim:
        difference = paired_bootstrap(scores(first), scores(second), metric, about)
        return PairedClaim(text, difference, unit, margin)

    ours, always = "deeprag, stage 2", "deeprag-retrieve, stage 2"
    mcc = paired_bootstrap_mcc(decisions("deeprag, stage 1"), decisions(ours), about)
    return [
        claim("DeepRAG answers better than direct answering", "direct, base", ours, "em", "exact match"),
        claim("DeepRAG answers better than vanilla RAG", "rag, base", ours, "em", "exact match"),
        claim("Retrieve-only retrieves more than DeepRAG", ours, always, "retrievals", "retrievals a question"),
        claim(
            f"DeepRAG is no less accurate than retrieve-only, to within {MARGIN:.0%}",
            always,
            ours,
            "em",
            "exact match",
            MARGIN,
        ),
        PairedClaim("Stage II improves the MCC of the decisions over Stage I", mcc, "MCC"),
    ]


def _curves(record: dict[str, Any], stage1: TrainResult, stage2: TrainResult) -> list[Curve]:
    """Return the training curves; ``record`` is the log of the mini model's pretraining."""

    def series(name: str, points: Sequence[tuple[float, float]]) -> Series:
        return Series(name=name, x=[float(x) for x, _ in points], y=[float(y) for _, y in points])

    def logged(result: TrainResult, key: str) -> list[tuple[float, float]]:
        return [(entry["step"], entry[key]) for entry in result.losses if key in entry]

    return [
        Curve(
            title="Mini model, from scratch",
            x_label="step",
            y_label="loss",
            series=[series("loss", record["losses"])],
        ),
        Curve(
            title="Stage I, imitation learning",
            x_label="step",
            y_label="loss",
            series=[series("loss", logged(stage1, "loss"))],
        ),
        Curve(
            title="Stage II, chain of calibration",
            x_label="step",
            y_label="loss, reward margin",
            series=[series("loss", logged(stage2, "loss")), series("margin", logged(stage2, "rewards/margins"))],
        ),
    ]


def _examples(result: SeedResult, count: int = 6) -> list[Example]:
    """Return the first question of each type and number of hops, with the trajectories of every stage."""
    chosen: dict[tuple[str, int | None], int] = {}
    for i, question in enumerate(result.questions):
        chosen.setdefault((question.type, question.hops), i)
    names = [f"deeprag, {stage}" for stage in STAGES]
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


def _summary(recipe: DemoRecipe, seeds: Sequence[int]) -> str:
    return (
        f"A {recipe.pretrain.layers}-layer language model trained from scratch on a world of which it knows "
        f"{recipe.world.known_share:.0%} of the facts. Tree search explores its knowledge boundary, which it then "
        f"learns by imitation (Stage I) and by calibration (Stage II). {recipe.test_questions} multi-hop "
        f"{recipe.split} questions, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}."
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
