"""The answers of a user's checkpoints, by the rows of the papers' tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rag_train.errors import UserError
from rag_train.eval.matrix.answers import Answers
from rag_train.eval.matrix.estimate import CellEstimate, estimate_cell
from rag_train.eval.matrix.run import identities
from rag_train.progress import console
from rag_train.questions.load import at_most, load_questions
from rag_train.retrieval.base import Retriever
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.kit import KitConfig, open_kit
from rag_train.strategies.registry import build

T = TypeVar("T")
START = "base"
"""Name of the model from which all methods start, and of rows that are not in `MODELS`."""


class Request(NamedTuple):
    """One model answering one set of questions by one strategy."""

    model: str
    strategy: str
    questions: str
    """Name of the dataset."""


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
}
"""Name of a row's model, by the row's strategy, training and variant of the training."""

OF_A_ROLE = {
    ("planrag", "sft", "the planner"),
    ("dualrag", "sft", "all but the Reasoner"),
    ("dualrag", "sft", "all but the Entity Identifier"),
    ("dualrag", "sft", "all but the Knowledge Summarizer"),
}
"""Rows in which one role has a model of its own, by the same keys; they are not measured."""


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

    def settings(self) -> dict[str, Any]:
        return {"models": dict(self.models), "sample": self.sample, "seed": self.seed}

    def about(self) -> list[str]:
        models = ", ".join(f"{name} is {model}" for name, model in self.models.items())
        files = ", ".join(f"{name} from {path.name}" for name, path in self.files.items())
        sample = "all" if self.sample is None else str(self.sample)
        return [f"Models: {models}.", f"Questions: {files}, {sample} of each (seed {self.seed})."]

    def questions(self, name: str) -> Sequence[Question]:
        return at_most(load_questions(self.files[name]), self.sample, self.seed)

    async def answers(self, requests: Iterable[Request]) -> dict[Request, list[Trajectory]]:
        async def ask(request: Request, kit: Kit, kept: Answers) -> list[Trajectory]:
            return await kept.ask(kit, self.questions(request.questions))

        return await self._with_kits(requests, ask)

    async def estimate(self, requests: Iterable[Request]) -> dict[Request, CellEstimate]:
        async def ask_few(request: Request, kit: Kit, kept: Answers) -> CellEstimate:
            missing = self._missing(request)
            cell = "/".join([*request, str(self.seed)])
            return await estimate_cell(cell, request.strategy, kit, missing, self.seed)

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
            async with open_kit(self._kit(model), self.retrievers) as kit:
                for request in group:
                    try:
                        build(request.strategy, kit)
                    except UserError as error:  # a retriever is missing; the other rows are still worth measuring
                        console.print(f"skipped {request.strategy}: {error}")
                        continue
                    out[request] = await work(request, kit, self._stored(request))
        return out

    def _can(self, request: Request) -> bool:
        return request.model in self.models and request.questions in self.files

    def _stored(self, request: Request) -> Answers:
        settings = self._kit(request.model).identity | {"retrievers": identities(self.retrievers)}
        return Answers(self.work / request.model, request.strategy, settings)

    def _kit(self, model: str) -> KitConfig:
        return replace(self.kit, model=self.models[model])

    def _missing(self, request: Request) -> list[Question]:
        return self._stored(request).missing(self.questions(request.questions))
