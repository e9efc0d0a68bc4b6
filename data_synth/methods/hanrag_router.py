"""The test set of HANRAG's router (appendix C): questions of four kinds, each with its class."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pydantic import FilePath

from rag_train.data_synth.inputs import read_files
from rag_train.data_synth.method import Method, SynthesisRecipe, method
from rag_train.data_synth.modules.examples import Examples
from rag_train.formats import hanrag
from rag_train.jobs.items import Outcome
from rag_train.recipe import Count
from rag_train.schema import Question

ROUTE = "route"
"""Metadata key of a question: its class."""


@dataclass(frozen=True, kw_only=True)
class RouterTestRecipe(SynthesisRecipe):
    """Held-out questions of the router's four classes, as many of each."""

    straightforward: list[FilePath]
    """Files of questions that need no retrieval, such as CommonsenseQA."""
    single_step: list[FilePath]
    """Files of questions that need one retrieval, such as Natural Questions, TriviaQA and SQuAD."""
    compound: list[FilePath]
    """Files of compound questions, as `rag-train synth compound` writes them."""
    complex: list[FilePath]
    """Files of questions that need several retrievals, such as HotpotQA, 2WikiMultihopQA and MuSiQue."""
    size: Count = 1500
    """Questions of each class, drawn at random: as many from each of its files, or all if a file has fewer."""


@method("hanrag-router")
class RouterTest(Method[RouterTestRecipe, Question]):
    """HANRAG's test set of the router, for `rag-train validate`.

    No model and no index are needed: a question's class is that of its file.
    """

    recipe_type: ClassVar = RouterTestRecipe
    starts: ClassVar = ("hanrag_router",)
    remedy: ClassVar = "check the questions"

    @classmethod
    @asynccontextmanager
    async def opened(cls, recipe: RouterTestRecipe) -> AsyncIterator[Self]:
        yield cls(recipe, routed(recipe))

    async def outcome(self, question: Question, /) -> Outcome:
        examples = Examples(question, self.recipe.given)
        route = question.metadata[ROUTE]
        examples.add(hanrag.ROUTE, hanrag.query_fields(question.question), route)
        return Outcome(examples, {route: 1})


def routed(recipe: RouterTestRecipe) -> list[Question]:
    """Return the questions that are drawn, with their class in the metadata."""
    files: dict[str, Sequence[Path]] = {
        "straightforward question": recipe.straightforward,
        "single-step question": recipe.single_step,
        "compound question": recipe.compound,
        "complex question": recipe.complex,
    }
    by_file = read_files([path for paths in files.values() for path in paths], None, recipe.seed)
    drawn: list[Question] = []
    for route, paths in files.items():
        for number, path in enumerate(paths):
            share = (number + 1) * recipe.size // len(paths) - number * recipe.size // len(paths)
            pool = list(by_file[path])
            chosen = random.Random(f"{recipe.seed}-{path.name}").sample(pool, min(share, len(pool)))
            drawn += [q.model_copy(update={"metadata": q.metadata | {ROUTE: route}}) for q in chosen]
    return drawn
