"""Synthesis of DeepRAG's training data: questions in, training records out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_train.data_synth.deeprag.cold_start import ColdStart
from rag_train.data_synth.deeprag.examples import chain_record, preference_pairs, sft_record
from rag_train.data_synth.deeprag.recipe import DeepRAGRecipe
from rag_train.data_synth.deeprag.search import SearchResult, TreeSearch, nodes
from rag_train.data_synth.inputs import check_unique_ids, identifying_settings, read_questions
from rag_train.data_synth.leakage import keep_out
from rag_train.formats.prompting import as_turn, task_prompt
from rag_train.jobs.items import WHOLE, Outcome, Rejected, Shard, Summary, cost, run
from rag_train.llm.base import LLM
from rag_train.llm.engines import open_engine
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.open import open_retriever
from rag_train.schema import LLMCall, Question, Record, SFTRecord


async def synthesize(recipe: DeepRAGRecipe, shard: Shard = WHOLE) -> Summary:
    """Open the recipe's retriever and engine, and write its records. Raises UserError for invalid input."""
    questions = read_questions(recipe.questions, recipe.sample, recipe.seed, recipe.earlier)
    front = AsyncRetriever(open_retriever(recipe.index))
    async with open_engine(recipe.model, recipe.engine) as llm:
        return await synthesize_with(recipe, llm, front, questions, front.identity, shard)


async def synthesize_with(
    recipe: DeepRAGRecipe,
    llm: LLM,
    retriever: AsyncRetriever,
    questions: Sequence[Question],
    identity: Any,
    shard: Shard = WHOLE,
) -> Summary:
    """Write the recipe's records with an open engine, a retriever and loaded questions.

    ``identity`` is the retriever's (`rag_train.retrieval.base.Retriever`). Raises UserError if two questions have
    the same id.
    """
    check_unique_ids(questions)
    searcher = TreeSearch(llm, retriever, recipe.search)
    cold_start = ColdStart(llm, retriever, recipe.cold_start, questions, recipe.search.passages, recipe.seed)
    task = "deeprag" if recipe.instructions else None
    whole_tree = recipe.stage == "pairs" and recipe.pairs != "optimal"

    async def outcome(question: Question) -> Outcome:
        prompt = task_prompt(question.question, task)
        turn = as_turn(llm.tokenizer, prompt)
        if recipe.stage == "cold_start":
            return _cold_start_outcome(question, *await cold_start.examples(question, prompt))
        result = await (searcher.explore if whole_tree else searcher.search)(question, turn)
        if recipe.stage == "pairs":
            records = preference_pairs(question, prompt, result, recipe.pairs)
        elif recipe.stage == "sft":
            records = [sft_record(question, prompt, result)]
        else:
            k = recipe.search.passages
            passages = await retriever.search(question.question, k) if recipe.stage == "cot_retrieve" else []
            records = [chain_record(question, result, passages, instructions=recipe.instructions)]
        return _search_outcome(question, result, [record for record in records if record])

    settings = identifying_settings(recipe, identity, TreeSearch, ColdStart, sft_record, task_prompt, keep_out)
    label = f"searching ({recipe.stage})"
    work = keep_out(recipe.held_out, recipe.leak, outcome)
    return await run(questions, work, Path(recipe.output), settings, label=label, shard=shard)


def _cold_start_outcome(question: Question, records: Sequence[SFTRecord], calls: Sequence[LLMCall]) -> Outcome:
    if not records:
        reason = "cut" if any(call.cut for call in calls) else "no gold decomposition"
        rejected = Rejected(id=question.id, reason=reason, text=question.question)
        return Outcome([], cost(calls), [rejected])
    transcripts = [record for record in records if not record.task]
    counts = {"transcripts": len(transcripts), "complete": sum(record.complete for record in transcripts)}
    return Outcome(records, cost(calls) | counts)


def _search_outcome(question: Question, result: SearchResult, records: Sequence[Record]) -> Outcome:
    """Count what the search found, and keep the lines that fit no format."""
    unparsed = [node.unparsed for node in nodes(result.root) if node.unparsed]
    counts = cost(result.calls) | {"solved": int(result.best is not None), "unparsed_lines": len(unparsed)}
    counts |= Counter(f"branches refused ({why})" for node in nodes(result.root) for why in node.refused)
    if result.best is not None:
        counts |= {"retrievals": result.best.retrievals, "steps": len(result.best.steps), result.source: 1}
    if records:
        return Outcome(records, counts)
    if result.best is not None:
        rejected = Rejected(id=question.id, reason="no pair", text=question.question)
    elif result.root.cut:
        rejected = Rejected(id=question.id, reason="cut", text=question.question)
    elif result.root.unparsed:
        rejected = Rejected(id=question.id, reason="first line not in the format", text=result.root.unparsed)
    else:
        rejected = Rejected(id=question.id, reason="no right trajectory", text=question.question)
    return Outcome([], counts, [rejected])
