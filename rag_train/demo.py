"""The main job end to end in the mini world: base model, search, imitation, calibration, evaluation, page.

Everything runs on the real parts: the vLLM engine, the BM25 index, TRL's trainers. What has been done under the
same recipe is taken from the work directory.
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
from typing import Any

from data_synth.deeprag import SearchConfig
from data_synth.synth import DeepRAGRecipe, synthesize_with
from eval.metrics import (
    Counts,
    Interval,
    Score,
    fact_counts,
    paired_bootstrap,
    paired_bootstrap_mcc,
    score,
)
from eval.report import (
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
from eval.run import evaluate
from eval.summary import RunSummary, pool, summarize
from eval.tables import decision_table, hops_table, main_table
from rag_train.llm.vllm import VLLMEngine
from rag_train.miniworld.pretrain import RECORD, PretrainConfig, pretrained
from rag_train.miniworld.world import World, WorldConfig, known_subqueries, write_world
from rag_train.progress import console
from rag_train.provenance import code_version, machine
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.bm25 import BM25Index
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.train import TrainResult, train
from rag_train.training.config import TrainRecipe

STAGES = ("base", "stage 1", "stage 2")


@dataclass(frozen=True, kw_only=True)
class StageRecipe:
    """How one stage is trained; the rest is as in `rag_train.training.config`."""

    questions: int
    """Training questions to search."""
    lr: float
    """Peak learning rate."""
    epochs: float
    """Passes over the data."""
    batch_size: int
    """Examples per optimizer step."""
    beta: float = 0.4
    """dpo: how much the model pays for leaving the reference."""
    sft_weight: float = 0.0
    """dpo: weight of an imitation term on the chosen snippet."""
    balance: bool = False
    """dpo: as many pairs for either decision."""


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
    """Questions to answer: dev to choose settings, test to report."""
    world: WorldConfig = field(default_factory=WorldConfig)
    """The world; its seed is the demo's."""
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    """The mini model; its seed is the demo's."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """Algorithm 1."""


@dataclass
class SeedResult:
    runs: list[RunSummary]
    trajectories: dict[str, list[Trajectory]]
    questions: list[Question]
    known: dict[str, bool]
    curves: list[Curve]
    timings: dict[str, float]


def run_demo(
    recipe: DemoRecipe, seeds: Sequence[int], work: Path, output: Path, *, scratch: bool = False
) -> ReportData:
    """Run every seed, write ``demo.json`` and ``demo.html`` to ``output``, print the tables."""
    start = time.perf_counter()
    results = [asyncio.run(_run_seed(recipe, seed, work, scratch)) for seed in seeds]
    runs = [run for result in results for run in result.runs]
    first = results[0]
    data = ReportData(
        title="DeepRAG in the mini world",
        summary=_summary(recipe, seeds),
        claims=claims(results),
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
    pooled = pool(runs)
    for table in (main_table(pooled), decision_table(pooled), hops_table(pooled)):
        console.print(table.rich())
    for claim in data.claims:
        console.print(f"{'held   ' if claim.held else 'not held'} {claim.text}: {claim.evidence}")
    console.print(f"{output / 'demo.html'} and demo.json, {time.perf_counter() - start:.0f} s")
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
        questions = {split: _multi_hop(world.questions(split)) for split in ("train", recipe.split)}
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
            file = folder / f"{stage.replace(' ', '')}-{name}.jsonl"
            settings = {"model": str(model), "split": recipe.split, "questions": len(asked)}
            trajectories[f"{name}, {stage}"] = await evaluate(name, kit, asked, file, settings)
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

    async def search(engine: VLLMEngine, stage: str, model: Path, sample: list[Question]) -> Path:
        output = folder / f"{stage}.jsonl"
        synth = DeepRAGRecipe(
            stage=stage,  # pyright: ignore[reportArgumentType]
            questions=[],
            index="",
            model=str(model),
            output=str(output),
            seed=seed,
            instructions=False,
            search=recipe.search,
        )
        await synthesize_with(synth, engine, retriever, sample, index.corpus_sha256)
        return output

    first, second = recipe.stage1, recipe.stage2
    async with serving(base) as engine:
        with step("evaluating the base model"):
            await answer(engine, "base", base, ["cot", "direct", "rag", "deeprag", "deeprag-retrieve"])
        with step("stage 1 search"):
            records = await search(engine, "sft", base, questions["train"][: first.questions])
    with step("stage 1 training"):
        stage1 = _train("sft", first, base, records, folder / "stage1", seed)
    async with serving(folder / "stage1") as engine:
        with step("stage 2 search"):
            later = questions["train"][first.questions : first.questions + second.questions]
            pairs = await search(engine, "pairs", folder / "stage1", later)
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


def _multi_hop(questions: list[Question]) -> list[Question]:
    return [question for question in questions if (question.hops or 0) > 1]


def _train(stage: str, settings: StageRecipe, model: Path, data: Path, output: Path, seed: int) -> TrainResult:
    return train(
        TrainRecipe(
            stage=stage,  # pyright: ignore[reportArgumentType]
            model=str(model),
            data=data,
            output_dir=str(output),
            lr=settings.lr,
            epochs=settings.epochs,
            batch_size=math.gcd(settings.batch_size, 4),  # small, so that little memory is needed
            gradient_accumulation=settings.batch_size // math.gcd(settings.batch_size, 4),
            beta=settings.beta,
            sft_weight=settings.sft_weight,
            balance=settings.balance,
            seed=seed,
            max_tokens=1024,
            save_steps=100,
            logging_steps=5,
        )
    )


def _timer(timings: dict[str, float], seed: int) -> Callable[[str], Any]:
    @contextmanager
    def step(part: str):
        console.print(f"[bold]{part}[/bold] (seed {seed})")
        start = time.perf_counter()
        yield
        timings[part] = timings.get(part, 0.0) + time.perf_counter() - start

    return step


MARGIN = 0.02
"""How much worse still counts as no worse, in exact match: two points."""


def claims(results: Sequence[SeedResult]) -> list[Claim]:
    """What the paper says should come out (Tables 1 to 3, Figure 5), decided by the 95% interval of the paired
    difference over the questions of all seeds; those about one film or person are resampled together."""
    about = [f"{i}/{q.decomposition[0].entity}" for i, result in enumerate(results) for q in result.questions]

    def scores(name: str) -> list[Score]:
        return [
            one.model_copy(update={"question_id": f"{i}/{one.question_id}"})
            for i, result in enumerate(results)
            for one in score(result.questions, result.trajectories[name])
        ]

    def decisions(name: str) -> list[Counts]:
        return [c for result in results for c in fact_counts(result.trajectories[name], result.known)]

    def claim(text: str, difference: Interval, least: float, unit: str) -> Claim:
        shown = f"{difference.mean:+.3f} [{difference.lo:+.3f}, {difference.hi:+.3f}] {unit}"
        return Claim(text=text, held=difference.lo > least, evidence=shown)

    ours, always = scores("deeprag, stage 2"), scores("deeprag-retrieve, stage 2")
    return [
        claim(
            "DeepRAG answers better than direct answering",
            paired_bootstrap(scores("direct, base"), ours, "em", about),
            0.0,
            "exact match",
        ),
        claim(
            "DeepRAG answers better than vanilla RAG",
            paired_bootstrap(scores("rag, base"), ours, "em", about),
            0.0,
            "exact match",
        ),
        claim(
            "Retrieve-only retrieves more than DeepRAG",
            paired_bootstrap(ours, always, "retrievals", about),
            0.0,
            "retrievals a question",
        ),
        claim(
            f"DeepRAG is no less accurate than retrieve-only, to within {MARGIN:.0%}",
            paired_bootstrap(always, ours, "em", about),
            -MARGIN,
            "exact match",
        ),
        claim(
            "Stage II improves the MCC of the decisions over Stage I",
            paired_bootstrap_mcc(decisions("deeprag, stage 1"), decisions("deeprag, stage 2"), about),
            0.0,
            "MCC",
        ),
    ]


def _curves(record: dict[str, Any], stage1: TrainResult, stage2: TrainResult) -> list[Curve]:
    def series(name: str, points: Sequence[tuple[float, float]]) -> Series:
        return Series(name=name, x=[float(x) for x, _ in points], y=[float(y) for _, y in points])

    def of(result: TrainResult, key: str) -> list[tuple[float, float]]:
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
            series=[series("loss", of(stage1, "loss"))],
        ),
        Curve(
            title="Stage II, chain of calibration",
            x_label="step",
            y_label="loss, reward margin",
            series=[series("loss", of(stage2, "loss")), series("margin", of(stage2, "rewards/margins"))],
        ),
    ]


def _examples(result: SeedResult, count: int = 6) -> list[Example]:
    """The first question of each number of hops and type."""
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
        f"{recipe.world.known_share:.0%} of the facts; its knowledge boundary explored by tree search, then "
        f"learnt by imitation (Stage I) and by calibration (Stage II). {recipe.test_questions} multi-hop "
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
