"""Synthesis of DeepRAG's training data: questions in, training records out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rag_train.data_synth.deeprag.examples import preference_pairs, sft_record
from rag_train.data_synth.deeprag.recipe import DeepRAGRecipe
from rag_train.data_synth.deeprag.search import TreeSearch
from rag_train.data_synth.inputs import check_unique_ids, identifying_settings, read_questions
from rag_train.formats.prompting import as_turn, task_prompt
from rag_train.llm.base import LLM
from rag_train.llm.engines import open_engine
from rag_train.provenance import weights_sha256
from rag_train.resumable import WHOLE, Outcome, Rejected, Shard, Summary, cost, run
from rag_train.retrieval.base import corpus_sha256
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.open import open_retriever
from rag_train.schema import Question


async def synthesize(recipe: DeepRAGRecipe, shard: Shard = WHOLE) -> Summary:
    """Open the recipe's retriever and engine, and write its records. Raises UserError for invalid input."""
    questions = read_questions(recipe.questions, recipe.sample, recipe.seed)
    retriever = open_retriever(recipe.index)
    async with open_engine(recipe.model, recipe.engine) as llm:
        front = AsyncRetriever(retriever)
        return await synthesize_with(recipe, llm, front, questions, corpus_sha256(retriever), shard)


async def synthesize_with(
    recipe: DeepRAGRecipe,
    llm: LLM,
    retriever: AsyncRetriever,
    questions: Sequence[Question],
    corpus: str,
    shard: Shard = WHOLE,
) -> Summary:
    """Write the recipe's records with an open engine, a retriever and loaded questions.

    ``corpus`` is the SHA-256 of the retriever's corpus. Raises UserError if two questions have the same id.
    """
    check_unique_ids(questions)
    searcher = TreeSearch(llm, retriever, recipe.search)
    task = "deeprag" if recipe.instructions else None
    whole_tree = recipe.stage == "pairs" and recipe.pairs != "optimal"

    async def work(question: Question) -> Outcome:
        prompt = task_prompt(question.question, task)
        turn = as_turn(llm.tokenizer, prompt)
        try:
            result = await (searcher.explore if whole_tree else searcher.search)(question, turn)
        except ValueError as error:  # the prompt is longer than the model's context
            return Outcome([], {}, [Rejected(id=question.id, reason="too long", text=str(error))])
        if recipe.stage == "sft":
            record = sft_record(question, prompt, result)
            records = [record] if record else []
        else:
            records = preference_pairs(question, prompt, result, recipe.pairs)
        counts = cost(result.calls) | {"solved": int(result.best is not None)}
        if result.best is not None:
            counts |= {"retrievals": result.best.retrievals, "steps": len(result.best.steps), result.source: 1}
        reason = "no right trajectory" if result.best is None else "no pair"
        rejected = [] if records else [Rejected(id=question.id, reason=reason, text=question.question)]
        return Outcome(records, counts, rejected)

    settings = identifying_settings(recipe)
    settings |= {"model_sha256": weights_sha256(recipe.model), "corpus_sha256": corpus}
    label = f"searching ({recipe.stage})"
    return await run(questions, work, Path(recipe.output), settings, label=label, shard=shard)
