"""The sources of measured answers: the mini world's seeds, or real checkpoints on the released questions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rag_train.errors import UserError
from rag_train.eval.matrix.answers import Answers
from rag_train.eval.matrix.estimate import CellEstimate, bound, estimate_cell
from rag_train.eval.miniworld.answers import Request, ask, stored
from rag_train.eval.miniworld.lab import PASSAGES, QUESTION_SETS, Lab, Settings
from rag_train.eval.papers.printed import PublishedTable, Row
from rag_train.eval.papers.protocol import load_protocol
from rag_train.progress import console
from rag_train.questions.load import at_most, load_questions
from rag_train.retrieval.base import Retriever
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.kit import KitConfig, open_kit
from rag_train.strategies.registry import build

T = TypeVar("T")


@cache
def _left_out() -> Mapping[str, str]:
    return load_protocol().left_out


STANDS_FOR: dict[str, str] = {
    "hotpotqa": "two-hop",
    "2wikimultihopqa": "mixed",
    "musique": "deep",
    "bamboogle": "two-hop",
    "strategyqa": "comparison",
    "compound": "compound",
    "cag": "changed",
    "popqa": "rare",
    "popqa-longtail": "rare",
    "triviaqa": "known",
}
"""Question set of the mini world that stands for a dataset; all other datasets are represented by single hops."""

MODELS: dict[tuple[str, str, str], str] = {
    ("cot", "sft", ""): "cot",
    ("cot-retrieve", "sft", ""): "cot-retrieve",
    ("deeprag", "sft", ""): "stage1",
    ("deeprag", "sft", "search.variant=most"): "stage1-most",
    ("deeprag", "sft", "search.variant=random"): "stage1-random",
    ("deeprag", "dpo", ""): "stage2",
    ("deeprag", "dpo", "pairs=all_nodes"): "stage2-all-nodes",
    ("deeprag", "dpo", "pairs=sentence_wise"): "stage2-sentence-wise",
    ("dualrag", "sft", ""): "dualrag",
    ("dualrag", "sft", "all but the Reasoner"): "dualrag",
    ("dualrag", "sft", "all but the Entity Identifier"): "dualrag",
    ("dualrag", "sft", "all but the Knowledge Summarizer"): "dualrag",
}
"""Model of a row, by the row's strategy, training and variant of the training."""

ROLES: dict[tuple[str, str, str], tuple[str, str]] = {
    ("planrag", "sft", "the planner"): ("planner", "planrag"),
    ("dualrag", "sft", "all but the Reasoner"): ("reasoner", "student"),
    ("dualrag", "sft", "all but the Entity Identifier"): ("identifier", "student"),
    ("dualrag", "sft", "all but the Knowledge Summarizer"): ("summarizer", "student"),
}
"""Role that a model of its own plays, and that model, by the same keys."""


class Source(Protocol):
    """A source of answers: one seed of the mini world, or real checkpoints."""

    start: str
    """Name of the model from which all methods start."""

    @property
    def world_seed(self) -> int | None:
        """The seed of the mini world; None for real models and questions."""
        ...

    def settings(self) -> dict[str, Any]:
        """Return the settings of the measurement."""
        ...

    def about(self) -> list[str]:
        """Return what a reader must know to interpret the numbers, as paragraphs."""
        ...

    def left_out(self) -> Mapping[str, str]:
        """Return the strategies and the claims that are not run on this source, with the reasons."""
        ...

    def missing(self, row: Row) -> str:
        """Return why the source cannot measure a row; empty if it can."""
        ...

    def default_model(self, row: Row, table: PublishedTable) -> str:
        """Return the model of a row that is not in `MODELS`."""
        ...

    def question_set(self, dataset: str) -> str:
        """Return the name of the questions that stand for a dataset."""
        ...

    def questions(self, name: str) -> Sequence[Question]:
        """Return the questions of a set."""
        ...

    async def answers(self, requests: Iterable[Request]) -> dict[Request, list[Trajectory]]:
        """Return the trajectories of the requests that the source can answer."""
        ...

    async def estimate(self, requests: Iterable[Request]) -> dict[Request, CellEstimate]:
        """Return what the missing answers of the requests would take."""
        ...


class MiniWorldSource:
    """One seed of the mini world."""

    start = "taught"

    def __init__(self, seed: int, settings: Settings):
        self.lab = Lab(seed, settings)
        self.world_seed = seed

    def settings(self) -> dict[str, Any]:
        return self.lab.settings.recorded()

    def about(self) -> list[str]:
        settings, world = self.lab.settings, self.lab.world
        known, outdated = (len(facts) / len(world.facts) for facts in (world.known, world.outdated))
        datasets = {
            name: [d for d, stands_for in STANDS_FOR.items() if stands_for == name] for name in QUESTION_SETS
        }
        return [
            "These numbers were measured in the mini world: its films and people are invented, and its models have "
            f"about two million parameters. They were taught {known:.0%} of the facts, and of another "
            f"{outdated:.0%} a value that has changed since. Only orderings can be compared with the papers, not "
            "numbers.",
            "Each dataset is represented by questions of the same kind: "
            + "; ".join(
                f"{' and '.join(names)} by {QUESTION_SETS[name]}" for name, names in datasets.items() if names
            )
            + f"; all other datasets by {QUESTION_SETS['single']}. There are {settings.questions} questions of "
            "each kind per seed, or as many as the world has, about films and people that no training question "
            "mentions.",
            "A model of this size cannot be prompted, and its pretraining text has no method's format. All methods "
            "therefore run on a model that was taught every format with the same number of tokens "
            f"({settings.tokens:,} a method, or as many as there are) from the same "
            f"{settings.demo.cold_start.questions:,} annotated "
            "questions and a sixth as many compound ones. DeepRAG's part is its cold start, whose decisions are "
            "random. The rows show how well a method works when its modules are followed, not how well a model "
            "follows prompts.",
            "DeepRAG's stages start from there. They are trained on the results of its search, as in the paper, "
            f"with the settings of the demo: Stage I of {settings.demo.stage1.questions:,} questions about films "
            f"and people that no lesson mentions, Stage II of {settings.demo.stage2.questions:,} other questions "
            f"about those of the lessons. The student was taught with {settings.few:,} tokens a method. It "
            "represents DualRAG's small model, and is fine-tuned on what the taught model makes of "
            f"{settings.students.questions} of Stage I's questions; so is PlanRAG's planner. CoT* and "
            "CoT-Retrieve* are trained as DeepRAG's Stage I, on its trajectories as chains of thought.",
            "The sparse and the dense searcher are both BM25 (with and without Lucene's query syntax), because in "
            "the mini world words are the only meaning. Nothing is on the web. The proxy for what a model knows "
            "(DeepRAG, Table 3) is the taught model's CoT.",
        ]

    def left_out(self) -> Mapping[str, str]:
        return _left_out()

    def missing(self, row: Row) -> str:
        key = "levelrag-web" if row.retriever == "web" else row.strategy or ""
        return self.left_out().get(key, "")

    def default_model(self, row: Row, table: PublishedTable) -> str:
        """Return the model that was taught every format, because the base model cannot be prompted.

        In tables with a fine-tuned DualRAG, the student represents the small model that DualRAG improves with a
        large model's data.
        """
        tuned = {other.strategy for other in table.rows if other.group == row.group and other.trained == "sft"}
        return "student" if "dualrag" in tuned else self.start

    def question_set(self, dataset: str) -> str:
        return STANDS_FOR.get(dataset, "single")

    def questions(self, name: str) -> list[Question]:
        return self.lab.questions(name)

    async def answers(self, requests: Iterable[Request]) -> dict[Request, list[Trajectory]]:
        return await ask(self.lab, {request: self.questions(request.questions) for request in requests})

    async def estimate(self, requests: Iterable[Request]) -> dict[Request, CellEstimate]:
        """Return the missing questions with their bounds; models that are not trained yet cannot be asked."""
        missing = {each: stored(self.lab, each).missing(self.questions(each.questions)) for each in requests}
        return {
            request: CellEstimate(
                cell_of(request, self.lab.seed), len(questions), bound(request.strategy, PASSAGES)
            )
            for request, questions in missing.items()
            if questions
        }


@dataclass
class CheckpointSource:
    """Real models by name (``base``, and the values of `MODELS`), on question files by dataset."""

    models: Mapping[str, str]
    files: Mapping[str, Path]
    kit: KitConfig
    retrievers: dict[str, Retriever]
    sample: int | None
    seed: int
    work: Path
    world_seed = None
    start = "base"

    def settings(self) -> dict[str, Any]:
        return {"models": dict(self.models), "sample": self.sample, "seed": self.seed}

    def about(self) -> list[str]:
        models = ", ".join(f"{name} is {model}" for name, model in self.models.items())
        files = ", ".join(f"{name} from {path.name}" for name, path in self.files.items())
        sample = "all" if self.sample is None else str(self.sample)
        return [f"Models: {models}.", f"Questions: {files}, {sample} of each (seed {self.seed})."]

    def left_out(self) -> Mapping[str, str]:
        return {}

    def missing(self, row: Row) -> str:
        return ""

    def default_model(self, row: Row, table: PublishedTable) -> str:
        return self.start

    def question_set(self, dataset: str) -> str:
        return dataset

    def questions(self, name: str) -> Sequence[Question]:
        return at_most(load_questions(self.files[name]), self.sample, self.seed)

    async def answers(self, requests: Iterable[Request]) -> dict[Request, list[Trajectory]]:
        async def ask(request: Request, kit: Kit, kept: Answers) -> list[Trajectory]:
            return await kept.ask(kit, self.questions(request.questions))

        return await self._with_kits(requests, ask)

    async def estimate(self, requests: Iterable[Request]) -> dict[Request, CellEstimate]:
        async def ask_few(request: Request, kit: Kit, kept: Answers) -> CellEstimate:
            missing = self._missing(request)
            return await estimate_cell(cell_of(request, self.seed), request.strategy, kit, missing, self.seed)

        lacking = [each for each in requests if self._can(each) and self._missing(each)]
        return await self._with_kits(lacking, ask_few)

    async def _with_kits(
        self, requests: Iterable[Request], work: Callable[[Request, Kit, Answers], Awaitable[T]]
    ) -> dict[Request, T]:
        """Start each model once, and return what ``work`` makes of the requests that the source can answer."""
        by_model: dict[str, list[Request]] = {}
        for request in dict.fromkeys(requests):
            if self._can(request):
                by_model.setdefault(request.model, []).append(request)
        out: dict[Request, T] = {}
        for model, group in by_model.items():
            async with open_kit(replace(self.kit, model=self.models[model]), self.retrievers) as kit:
                for request in group:
                    try:
                        build(request.strategy, kit)
                    except UserError as error:  # a retriever is missing; the other rows are still worth measuring
                        console.print(f"skipped {request.strategy}: {error}")
                        continue
                    out[request] = await work(request, kit, self._stored(request))
        return out

    def _can(self, request: Request) -> bool:
        return request.model in self.models and request.questions in self.files and request.role is None

    def _stored(self, request: Request) -> Answers:
        return Answers(self.work / request.model, request.strategy, {"model": self.models[request.model]})

    def _missing(self, request: Request) -> list[Question]:
        return self._stored(request).missing(self.questions(request.questions))


def cell_of(request: Request, seed: int) -> str:
    """Return a name for one request of one seed: model, role, strategy, questions and seed."""
    roles = [f"{role}={model}" for role, model in [request.role or ("", "")] if role]
    return "/".join([request.model, *roles, request.strategy, request.questions, str(seed)])
