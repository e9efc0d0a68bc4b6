"""Synthesis of module examples: runs a `Factory` over questions, from gold annotations or with a teacher."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rag_train.data_synth.inputs import check_unique_ids, identifying_settings, on_any_server
from rag_train.data_synth.leakage import keep_out
from rag_train.data_synth.modules.factory import Factory
from rag_train.data_synth.modules.recipes import GoldRecipe, TeacherRecipe
from rag_train.jobs.items import WHOLE, Outcome, Shard, Summary, run
from rag_train.progress import console
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.open import open_retriever
from rag_train.schema import Question
from rag_train.strategies.base import Kit
from rag_train.strategies.kit import KitConfig, open_models


async def synthesize_modules(factory: Factory, recipe: GoldRecipe, shard: Shard = WHOLE) -> Summary:
    """Open the recipe's retriever and teacher, and write its records. Raises UserError for invalid input."""
    questions = factory.questions(recipe)
    retriever = AsyncRetriever(open_retriever(recipe.index))
    async with _teacher(factory, recipe, retriever) as teacher:
        identity = retriever.identity
        summary = await synthesize_with(factory, recipe, questions, retriever, teacher, identity, shard)
    if factory.table and teacher:
        console.print(factory.table(summary.counts))
    return summary


async def synthesize_with(
    factory: Factory,
    recipe: GoldRecipe,
    questions: Sequence[Question],
    retriever: AsyncRetriever,
    teacher: Kit | None,
    identity: Any,
    shard: Shard = WHOLE,
) -> Summary:
    """Write the recipe's records with loaded questions, a retriever and an open teacher.

    ``identity`` is the retriever's (`rag_train.retrieval.base.Retriever`). Raises UserError if two questions have
    the same id.
    """
    check_unique_ids(questions)

    async def outcome(question: Question) -> Outcome:
        return await factory.outcome(question, recipe, retriever, teacher)

    settings = identifying_settings(recipe, identity, factory.outcome, keep_out) | {"method": factory.method}
    if isinstance(recipe, TeacherRecipe) and recipe.model:
        roles = sorted(factory.roles(recipe).items())
        settings["roles"] = {role: on_any_server(config.place, config.engine) for role, config in roles}
    label = f"{factory.method}, {'by a teacher' if teacher else 'from gold'}"
    work = keep_out(recipe.held_out, recipe.leak, outcome)
    return await run(questions, work, Path(recipe.output), settings, label=label, shard=shard)


@asynccontextmanager
async def _teacher(factory: Factory, recipe: GoldRecipe, retriever: AsyncRetriever) -> AsyncIterator[Kit | None]:
    """The recipe's teacher with an open engine; None if the recipe names no model."""
    if not isinstance(recipe, TeacherRecipe) or recipe.model is None:
        yield None
        return
    reranker = factory.reranker(recipe) if factory.reranker else None
    config = KitConfig(model=recipe.model, indexes=[], roles=factory.roles(recipe), engine=recipe.engine)
    async with open_models(config) as (llm, models):
        yield Kit(llm, retriever, recipe.passages, recipe.instructions, models, reranker=reranker)
