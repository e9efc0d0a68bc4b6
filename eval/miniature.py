"""The papers' experiments in the mini world: their models, trained when first asked for, and their answers.

What has been done is kept below the work directory and not done again; a run that was killed goes on.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from data_synth.deeprag import PairVariant, SearchConfig
from data_synth.miniworld import lessons
from data_synth.synth import DeepRAGRecipe, synthesize_with
from eval import students
from eval.run import evaluate
from rag_train.llm.base import LLM
from rag_train.llm.transformers import TransformersEngine
from rag_train.llm.vllm import VLLMEngine
from rag_train.miniworld.pretrain import PretrainConfig, pretrained
from rag_train.miniworld.vocabulary import with_words
from rag_train.miniworld.world import World, WorldConfig
from rag_train.progress import console
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.bm25 import BM25Index
from rag_train.retrieval.lucene import LuceneIndex
from rag_train.schema import Question, SFTRecord, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.baselines import selfrag
from rag_train.train import RESULT, train
from rag_train.training.config import TrainRecipe

Stage = Literal["stage1", "stage1-most", "stage1-random", "stage2", "stage2-all-nodes", "stage2-sentence-wise"]
"""DeepRAG's, with the variants of its Tables 4 (which trajectory is imitated) and 5 (which pairs calibrate)."""

Model = Literal["base", "taught", "student", Stage, students.Student]
"""base: as pretrained. taught: every module's and baseline's format, from gold annotations. student: the same from
few of them, as a model that a teacher's data is to make better; the `students.Student`s are made from it."""

KINDS: dict[str, str] = {
    "single": "one hop",
    "two-hop": "chains of two hops",
    "deep": "chains of three and four hops",
    "comparison": "two entities compared, in two to four hops",
    "compound": "two or three questions in one",
}
"""The sets of questions, each of films and people that no training question mentions."""


class Cell(NamedTuple):
    """One model answering one set of questions by one strategy."""

    model: str
    strategy: str
    kind: str
    role: tuple[str, str] | None = None
    """A role that another model has, and that model."""

    @property
    def name(self) -> str:
        """Of its file."""
        return "-".join([self.strategy, *(self.role or ()), self.kind])


@dataclass(frozen=True)
class Settings:
    """Sizes, of one seed. Chosen on dev questions."""

    work: Path = Path("runs/miniature")
    split: str = "test"
    questions: int = 60
    """Questions of each kind."""
    lessons: int = 300
    """Training questions to make gold examples of."""
    few: int = 40
    """The same for the student."""
    taught: int = 600
    """Training questions that a teacher answers for the student."""
    searched: int = 400
    """Training questions to search for each of DeepRAG's stages."""


class Miniature:
    """One seed: a world, its index, its models and their answers."""

    def __init__(self, seed: int, settings: Settings):
        self.seed = seed
        self.settings = settings
        self.folder = settings.work / f"seed{seed}"
        self.world = World(WorldConfig(seed=seed))
        self.index = BM25Index.build(self.world.corpus())
        self.retriever = AsyncRetriever(self.index)
        # Nothing here wants a sentence encoder: the words of a query are its meaning.
        self.retrievers = {
            "sparse": AsyncRetriever(LuceneIndex.build(self.world.corpus())),
            "dense": self.retriever,
        }
        self._asked: dict[str, list[Question]] = {}
        training = [q for q in self.world.questions("train") if (q.hops or 0) > 1]
        size = settings.searched
        self._searched = {"stage1": training[:size], "stage2": training[size : 2 * size]}

    def questions(self, kind: str) -> list[Question]:
        """The questions of one of `KINDS`."""
        if kind not in self._asked:
            self._asked[kind] = self._draw(kind)
        return self._asked[kind]

    def _draw(self, kind: str) -> list[Question]:
        n, split = self.settings.questions, self.settings.split
        if kind == "compound":
            return self.world.compounds(split, n)
        chosen = {
            "single": lambda q: q.hops == 1,
            "two-hop": lambda q: q.type == "chain" and q.hops == 2,
            "deep": lambda q: q.type == "chain" and q.hops > 2,
            "comparison": lambda q: q.type.startswith("comparison"),
        }[kind]
        return [q for q in self.world.questions(split) if chosen(q)][:n]

    async def answers(self, cells: Iterable[Cell]) -> dict[Cell, list[Trajectory]]:
        """The trajectories of every cell: models are trained first, then each is served once."""
        by_model: dict[tuple[str, tuple[str, str] | None], list[Cell]] = {}
        for cell in dict.fromkeys(cells):
            by_model.setdefault((cell.model, cell.role), []).append(cell)
        out: dict[Cell, list[Trajectory]] = {}
        for (model, role), some in by_model.items():
            directory = await self.model(model)
            other = {role[0]: await self.model(role[1])} if role else {}
            missing = [cell for cell in some if not self.file(cell).exists()]
            async with AsyncExitStack() as stack:
                # An engine starts only if there is something to ask; attention weights are not vLLM's.
                engine = slow = None
                models: dict[str, LLM] = {}
                if any(not _slow(cell) for cell in missing):
                    engine = await stack.enter_async_context(self.serve(directory))
                    for name, path in other.items():
                        models[name] = await stack.enter_async_context(self.serve(path))
                if any(map(_slow, missing)):
                    slow = TransformersEngine.start(str(directory))
                for cell in some:
                    if cell in missing:
                        llm = slow if _slow(cell) else engine
                        assert llm is not None
                        kit = self.kit(llm, models)
                        settings = {"model": str(directory), "split": self.settings.split, "kind": cell.kind}
                        asked = self.questions(cell.kind)
                        out[cell] = await evaluate(cell.strategy, kit, asked, self.file(cell), settings)
                    else:
                        lines = self.file(cell).read_text(encoding="utf-8").splitlines()
                        out[cell] = [Trajectory.model_validate_json(line) for line in lines]
        return out

    def file(self, cell: Cell) -> Path:
        """Where a cell's trajectories are."""
        split = f"{self.settings.split}-{self.settings.questions}"
        return self.folder / split / cell.model / f"{cell.name}.jsonl"

    def kit(self, llm: LLM, models: Mapping[str, LLM] | None = None) -> Kit:
        """What strategies work with; ``models`` by role."""
        return Kit(llm, self.retriever, instructions=False, models=models or {}, retrievers=self.retrievers)

    @asynccontextmanager
    async def serve(self, model: Path) -> AsyncIterator[VLLMEngine]:
        """The engine, for as long as it is used."""
        engine = VLLMEngine.start(str(model), dtype="float32", seed=self.seed, kv_cache_bytes=2**28)
        try:
            yield engine
        finally:
            await engine.aclose()

    async def model(self, name: str) -> Path:
        """The checkpoint directory of one of `Model`."""
        directory = self.folder / name
        if name == "base":
            base = pretrained(self.world, PretrainConfig(seed=self.seed), Path("runs/demo/base"))
            return base[0]
        if (directory / RESULT).is_file():
            return directory
        console.print(f"[bold]{name}[/bold] (seed {self.seed})")
        if name in get_args(Stage):
            await self._deeprag(name, directory)
        elif name in ("taught", "student"):
            n = self.settings.lessons if name == "taught" else self.settings.few
            records = await lessons(
                self.world, self.retriever, questions=n, compounds=n // 2, readings=n * 15, repeats=n * 4
            )
            await self._fine_tune("base", records, directory)
        else:
            await self._fine_tune(students.start(name), await students.examples(self, name), directory)
        return directory

    async def _deeprag(self, name: str, output: Path) -> None:
        stage, _, variant = name.partition("-")
        start = await self.model("base" if stage == "stage1" else "stage1")
        data = await self._explore(stage, variant, start)
        common = {"model": str(start), "data": data, "output_dir": str(output), "seed": self.seed}
        common |= {"max_tokens": 1024, "save_steps": 200}
        if stage == "stage1":
            recipe = TrainRecipe(stage="sft", lr=3e-4, epochs=3, pack_tokens=512, **common)
        else:  # as the demo's, which says why
            common |= {"batch_size": 8, "layout": "tree"}
            common |= {"beta": 0.4, "sft_weight": 1.0, "balance": variant != "sentence-wise"}
            recipe = TrainRecipe(stage="dpo", lr=1e-4, epochs=2, **common)
        await asyncio.to_thread(train, recipe)

    async def _explore(self, stage: str, variant: str, model: Path) -> Path:
        """Training data of one of DeepRAG's stages."""
        output = self.folder / f"{stage}-{variant or 'paper'}.jsonl"
        which: Literal["minimal", "most", "random"] = "minimal"
        pairs: PairVariant = "optimal"
        match variant:
            case "most" | "random":
                which = variant
            case "all-nodes":
                pairs = "all_nodes"
            case "sentence-wise":
                pairs = "sentence_wise"
        recipe = DeepRAGRecipe(
            stage="sft" if stage == "stage1" else "pairs",
            questions=[],
            index="",
            model=str(model),
            output=str(output),
            seed=self.seed,
            instructions=False,
            pairs=pairs,
            search=SearchConfig(variant=which),
        )
        if not output.exists():
            async with self.serve(model) as engine:
                asked = self._searched[stage]
                await synthesize_with(recipe, engine, self.retriever, asked, self.index.corpus_sha256)
        return output

    async def _fine_tune(self, start: str, records: Sequence[SFTRecord], output: Path) -> None:
        """``start``, its vocabulary extended by the words of ``records``, trained on them."""
        model = await self.model(start)
        self.folder.mkdir(parents=True, exist_ok=True)
        data = self.folder / f"{output.name}.jsonl"
        data.write_text("".join(f"{record.model_dump_json()}\n" for record in records), encoding="utf-8")
        extended = self.folder / f"{output.name}-extended"
        texts = (record.prompt + record.completion for record in records)
        with_words(model, texts, extended, selfrag.TOKENS)
        recipe = TrainRecipe(
            stage="sft",
            model=str(extended),
            data=data,
            output_dir=str(output),
            lr=1e-3,
            epochs=3,
            pack_tokens=2048,
            seed=self.seed,
            max_tokens=1024,
        )
        await asyncio.to_thread(train, recipe)
        shutil.rmtree(extended)


def _slow(cell: Cell) -> bool:
    return cell.strategy.startswith("dragin")
