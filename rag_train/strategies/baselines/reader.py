"""Baselines that answer in one call: direct, chain of thought, retrieve-then-read, and reading the gold passages.

They are baselines in all five papers; chain of thought follows Wei et al. (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Run, Strategy


@dataclass(frozen=True)
class Direct(Strategy):
    """Answer from memory, without reasoning."""

    paper: ClassVar = "all five papers (Vanilla-LLM, No retrieval)"

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        return run.done((await run.read(question.question))[1])


@dataclass(frozen=True)
class ChainOfThought(Strategy):
    """Answer from memory with a chain of thought."""

    paper: ClassVar = "Wei et al. 2022; DeepRAG, section 4.2"

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        reasoning, answer = await run.read(question.question, reason=True)
        return run.done(answer, reasoning)


@dataclass(frozen=True)
class VanillaRAG(Strategy):
    """Retrieve passages for the question and answer from them."""

    paper: ClassVar = "Lewis et al. 2020; all five papers (k = 5, 10, 200)"

    k: int | None = None
    """Number of passages; null: the same number as for other strategies."""
    reason: bool = False
    """Reason before answering (CoT-RAG: PlanRAG, appendix B; CoT-Retrieve: DeepRAG, section 4.2)."""

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        found = await run.search(question.question, self.k)
        name = "cot_rag" if self.reason else "rag"
        reasoning, answer = await run.read(question.question, found, name=name, reason=self.reason)
        run.retrieved(question.question, found, answer)
        return run.done(answer, reasoning)


@dataclass(frozen=True)
class Oracle(Strategy):
    """Read the question's gold passages or, without them, the passages retrieved for its gold subqueries."""

    paper: ClassVar = "the usual upper bound for reading; LevelRAG, section 4 (retrieval success)"
    needs: ClassVar = ("gold annotations",)

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        passages = question.gold_passages
        queries = [step.subquery for step in question.decomposition]
        if not passages:
            wanted = {id for step in question.decomposition for id in step.passage_ids}
            found = await run.search_all(queries or [question.question], 10)
            passages = [p for p in found if p.id in wanted] or found
        _, answer = await run.read(question.question, passages, name="rag")
        run.retrieved(question.question, passages, answer)
        return run.done(answer)
