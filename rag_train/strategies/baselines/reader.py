"""The baselines that answer in one call: direct, chain of thought, retrieve-then-read, given the right passages.

Sources: the baselines of all five papers; chain of thought after Wei et al. (2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Run, Strategy


@dataclass(frozen=True)
class Direct(Strategy):
    """Answer at once, from memory."""

    paper: ClassVar = "all five papers (Vanilla-LLM, No retrieval)"

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        return run.done((await run.read(question.question))[1])


@dataclass(frozen=True)
class ChainOfThought(Strategy):
    """Think step by step, from memory."""

    paper: ClassVar = "Wei et al. 2022; DeepRAG, section 4.2"

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        reasoning, answer = await run.read(question.question, reason=True)
        return run.done(answer, reasoning)


@dataclass(frozen=True)
class VanillaRAG(Strategy):
    """Retrieve for the question, then read."""

    paper: ClassVar = "Lewis et al. 2020; all five papers (k = 5, 10, 200)"

    k: int | None = None
    """Passages; the run's if not given."""
    reason: bool = False
    """Think before answering (CoT-RAG: PlanRAG, appendix B; CoT-Retrieve: DeepRAG, section 4.2)."""

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        found = await run.search(question.question, self.k)
        name = "cot_rag" if self.reason else "rag"
        reasoning, answer = await run.read(question.question, found, name=name, reason=self.reason)
        run.retrieved(question.question, found, answer)
        return run.done(answer, reasoning)


@dataclass(frozen=True)
class Oracle(Strategy):
    """Read the question's gold passages (or, without any, what its gold subqueries find)."""

    paper: ClassVar = "the usual upper bound of reading; LevelRAG, section 4 (retrieval success)"
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
