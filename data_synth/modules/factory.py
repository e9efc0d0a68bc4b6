"""What `run` needs to know about a system whose modules are trained: each method's file declares its `Factory`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rag_train.data_synth.inputs import read_questions
from rag_train.data_synth.modules.recipes import GoldRecipe
from rag_train.jobs.items import Outcome
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Passage, Question, SFTRecord
from rag_train.strategies.base import Kit
from rag_train.strategies.kit import RoleConfig
from rag_train.table import Table

if TYPE_CHECKING:
    from rag_train.retrieval.rerank import Reranker  # needs an optional dependency


class GoldRecords(Protocol):
    def __call__(
        self, question: Question, passages_by_query: Mapping[str, list[Passage]], *, instructions: bool = True
    ) -> list[SFTRecord]: ...


def recipe_questions(recipe: GoldRecipe) -> Sequence[Question]:
    """Read the recipe's question files."""
    return read_questions(recipe.questions, recipe.sample, recipe.seed)


@dataclass(frozen=True, kw_only=True)
class Factory:
    """How the training examples of one system's modules are made.

    Attributes:
        method: name of the system.
        recipe: class of its recipes.
        gold_records: makes a question's examples from its annotations, given the passages found for each query.
        outcome: makes a question's examples as the recipe says; from annotations if the teacher is None.
        questions: reads the recipe's questions.
        reranker: opens the reranker of the teacher's kit, if the system has one.
        roles: returns the models of the teacher's roles from the recipe.
        table: makes the table that is printed after a teacher's run from its counts, if the system has one.
    """

    method: str
    recipe: type[GoldRecipe]
    gold_records: GoldRecords
    outcome: Callable[[Question, Any, AsyncRetriever, Kit | None], Awaitable[Outcome]]
    questions: Callable[[Any], Sequence[Question]] = recipe_questions
    reranker: Callable[[Any], Reranker | None] | None = None
    roles: Callable[[Any], Mapping[str, RoleConfig]] = lambda recipe: {}
    table: Callable[[Mapping[str, int]], Table] | None = None
