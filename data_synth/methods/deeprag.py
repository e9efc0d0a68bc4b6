"""Synthesis of DeepRAG's training data: questions in, training records out."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from rag_train.data_synth.deeprag.cold_start import ColdStart, ColdStartConfig
from rag_train.data_synth.deeprag.examples import PairVariant, chain_record, preference_pairs, sft_record
from rag_train.data_synth.deeprag.search import SearchConfig, SearchResult, TreeSearch, nodes
from rag_train.data_synth.inputs import identity_of_roles, read_questions
from rag_train.data_synth.method import Method, QuestionsRecipe, method
from rag_train.formats.prompting import task_prompt
from rag_train.jobs.items import Outcome, Rejected, cost
from rag_train.llm.base import LLM
from rag_train.llm.engines import EngineConfig
from rag_train.recipe import Count
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.open import open_retriever
from rag_train.schema import LLMCall, Question, Record, SFTRecord
from rag_train.strategies.kit import KitConfig, open_models, parse_roles

WRITER = "writer"


@dataclass(frozen=True, kw_only=True)
class DeepRAGRecipe(QuestionsRecipe):
    """Cold-start, Stage I or Stage II data of DeepRAG. The paper samples 4,000 questions for sft, 1,000 for
    pairs."""

    stage: Literal["cold_start", "sft", "pairs", "cot", "cot_retrieve"]
    """cold_start: gold decompositions with random decisions, for models that do not write the format yet; sft: the
    kept trajectories (Stage I, section 3.3); pairs: preference pairs at their nodes (Stage II, section 3.4); cot,
    cot_retrieve: the kept trajectories as chains of thought, alone or after the passages found for the question
    (the baselines CoT* and CoT-Retrieve*, section 4.2)."""
    model: str
    """Model that explores the tree: the base model (or the model after the cold start) for sft, the Stage I model
    for pairs."""
    roles: list[str] = field(default_factory=list)
    """[writer=PLACE]: another model that writes the subqueries and reads the passages, with settings of its engine
    as --role of `rag-train eval` has them. The release has one of 72B for Stage I. The stages cold_start and pairs
    are the model's own."""
    earlier: list[Count] = field(default_factory=list)
    """Samples of the stages before, drawn from the same files with the same seed: their questions are left out.
    [4000] for pairs after sft with sample 4000."""
    pairs: PairVariant = "optimal"
    """Which preference pairs to make (Table 5)."""
    cold_start: ColdStartConfig = field(default_factory=ColdStartConfig)
    """Settings of the cold-start examples."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """Settings of the tree search."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Engine that serves the model."""

    @property
    def models(self) -> KitConfig:
        """The model, and the writer where the stage has one."""
        roles = parse_roles("roles:", self.roles, (WRITER,), self.engine)
        if self.stage in ("cold_start", "pairs"):
            roles = {}
        return KitConfig(model=self.model, indexes=[self.index], engine=self.engine, roles=roles)


@method("deeprag")
class DeepRAGData(Method[DeepRAGRecipe, Question]):
    """DeepRAG: cold-start examples (stage=cold_start), optimal trajectories (sft) or preference pairs (pairs)."""

    recipe_type: ClassVar = DeepRAGRecipe
    starts: ClassVar = ("deeprag_synth", "cot_synth")
    remedy: ClassVar = (
        "set search.guided=true, or fine-tune the model on cold-start examples first (stage=cold_start)"
    )

    def __init__(
        self,
        recipe: DeepRAGRecipe,
        questions: Sequence[Question],
        llm: LLM,
        retriever: AsyncRetriever,
        writer: LLM | None = None,
    ):
        super().__init__(recipe, questions, retriever.identity)
        self.retriever = retriever
        fallback = recipe.search.gold_fallback and recipe.stage != "pairs"
        self._searcher = TreeSearch(llm, retriever, replace(recipe.search, gold_fallback=fallback), writer)
        passages = recipe.search.passages
        self._cold_start = ColdStart(llm, retriever, recipe.cold_start, questions, passages, recipe.seed)

    @classmethod
    @asynccontextmanager
    async def opened(cls, recipe: DeepRAGRecipe) -> AsyncIterator[Self]:
        questions = read_questions(recipe.questions, recipe.sample, recipe.seed, recipe.earlier)
        retriever = AsyncRetriever(open_retriever(recipe.index))
        async with open_models(recipe.models) as (llm, roles):
            yield cls(recipe, questions, llm, retriever, roles.get(WRITER))

    def settings(self) -> dict[str, Any]:
        return super().settings() | identity_of_roles(self.recipe.models)

    @property
    def label(self) -> str:
        return f"deeprag, {self.recipe.stage}"

    async def outcome(self, question: Question, /) -> Outcome:
        """Search the question's tree, or make its cold-start examples."""
        recipe = self.recipe
        prompt = searched = task_prompt(question.question, recipe.given, "deeprag")
        if recipe.stage == "cold_start":
            return _cold_start_outcome(question, *await self._cold_start.examples(question, prompt))
        whole_tree = recipe.stage == "pairs" and recipe.pairs != "optimal"
        search = self._searcher.explore if whole_tree else self._searcher.search
        if recipe.stage != "pairs":  # as in the release, whose records have the instruction alone
            searched = task_prompt(question.question, recipe.given, "deeprag", "deeprag_examples")
        result = await search(question, searched)
        if recipe.stage == "pairs":
            records = preference_pairs(question, prompt, result, recipe.pairs)
        elif recipe.stage == "sft":
            records = [sft_record(question, prompt, result)]
        else:
            read = recipe.stage == "cot_retrieve"
            passages = await self.retriever.search(question.question, recipe.search.passages) if read else []
            records = [chain_record(question, result, passages, instructions=recipe.given)]
        return _search_outcome(question, result, [record for record in records if record])


def _cold_start_outcome(question: Question, records: Sequence[SFTRecord], calls: Sequence[LLMCall]) -> Outcome:
    if not records:
        reason = "cut" if any(call.cut for call in calls) else "no gold decomposition"
        return Outcome([], cost(calls), [Rejected(id=question.id, reason=reason, text=question.question)])
    transcripts = [record for record in records if not record.task]
    counts = {"transcripts": len(transcripts), "complete": sum(record.complete for record in transcripts)}
    return Outcome(records, cost(calls) | counts)


def _search_outcome(question: Question, result: SearchResult, records: Sequence[Record]) -> Outcome:
    """Count what the search found, and keep the lines that fit no format."""
    root, best = result.root, result.best
    unparsed = [node.unparsed for node in nodes(root) if node.unparsed]
    counts = cost(result.calls) | {"solved": int(best is not None), "unparsed_lines": len(unparsed)}
    counts |= Counter(f"branches refused ({why})" for node in nodes(root) for why in node.refused)
    if best is not None:
        counts |= {"retrievals": best.retrievals, "steps": len(best.steps), result.source: 1}
    if records:
        return Outcome(records, counts)
    reason, text = "no right trajectory", question.question
    if best is not None:
        reason = "no pair"
    elif root.cut:
        reason = "cut"
    elif root.unparsed:
        reason, text = "first line not in the format", root.unparsed
    return Outcome([], counts, [Rejected(id=question.id, reason=reason, text=text)])
