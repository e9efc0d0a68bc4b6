"""Synthesis of module examples: of systems whose steps are modules, from gold annotations or by a teacher."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, TypeVar

from rag_train.data_synth.inputs import identity_of_roles, read_questions
from rag_train.data_synth.method import Method, QuestionsRecipe
from rag_train.formats.instructions import OURS, Given
from rag_train.llm.engines import EngineConfig
from rag_train.recipe import Count
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.open import open_retriever
from rag_train.schema import Passage, Question, SFTRecord
from rag_train.strategies.base import Kit
from rag_train.strategies.kit import KitConfig, open_kit


@dataclass(frozen=True, kw_only=True)
class GoldRecipe(QuestionsRecipe):
    """Examples of a system's modules from gold annotations (MuSiQue's decompositions, 2Wiki's evidences).

    Questions without annotated hops are rejected.
    """

    passages: Count = 5
    """Number of passages retrieved for each query."""


@dataclass(frozen=True, kw_only=True)
class TeacherRecipe(GoldRecipe):
    """Examples of a system's modules from gold annotations or, if a model is given, from a teacher."""

    model: str | None = None
    """The teacher model; null: gold annotations only."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Engine that serves the teacher."""
    max_tokens: Count | None = None
    """Maximum number of tokens of a text that the teacher writes; null: the limit of each kind of text. What the
    limit cuts is rejected."""


class GoldRecords(Protocol):
    """Makes a question's examples from its annotations, given the passages found for each query."""

    def __call__(
        self, question: Question, passages_by_query: Mapping[str, list[Passage]], *, instructions: Given = OURS
    ) -> list[SFTRecord]: ...


R = TypeVar("R", bound=GoldRecipe)


class ModuleMethod(Method[R, Question]):
    """A method whose records are examples of a system's modules.

    Attributes:
        gold_records: makes a question's examples from its annotations.
        retriever: finds the passages that the modules read.
        teacher: the kit of the model that writes what the annotations do not have; None without a teacher.
    """

    gold_records: ClassVar[GoldRecords]

    def __init__(
        self, recipe: R, questions: Sequence[Question], retriever: AsyncRetriever, teacher: Kit | None = None
    ):
        super().__init__(recipe, questions, retriever.identity)
        self.retriever = retriever
        self.teacher = teacher

    @classmethod
    def questions(cls, recipe: R) -> Sequence[Question]:
        """Read the recipe's questions."""
        return read_questions(recipe.questions, recipe.sample, recipe.seed)

    @classmethod
    def kit(cls, recipe: R) -> KitConfig | None:
        """Return the settings of the teacher's kit; None without a teacher."""
        if not isinstance(recipe, TeacherRecipe) or recipe.model is None:
            return None
        return KitConfig(
            model=recipe.model,
            indexes=[recipe.index],
            engine=recipe.engine,
            passages=recipe.passages,
            given=recipe.given,
        )

    @classmethod
    @asynccontextmanager
    async def opened(cls, recipe: R) -> AsyncIterator[Self]:
        questions, config = cls.questions(recipe), cls.kit(recipe)
        retriever = open_retriever(recipe.index)
        if config is None:
            yield cls(recipe, questions, AsyncRetriever(retriever))
            return
        async with open_kit(config, {"": retriever}) as kit:
            yield cls(recipe, questions, kit.retriever, kit)

    @property
    def label(self) -> str:
        return f"{self.name}, {'by a teacher' if self.teacher else 'from gold'}"

    def settings(self) -> dict[str, Any]:
        config = self.kit(self.recipe)
        return super().settings() | ({"roles": {}} if config is None else identity_of_roles(config))
