"""QD-RAG: a single decomposition of the question into sub-queries, which are answered in sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats import planrag
from rag_train.formats.tasks import Task
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Run, Strategy

DECOMPOSE = Task("qd_rag", "Subqueries:", list[str], max_tokens=192)


@dataclass(frozen=True)
class QDRAG(Strategy):
    """Decompose the question, answer each sub-query given the previous answers, then the question given all."""

    paper: ClassVar = "Patel et al. 2022; PlanRAG, appendix B (QD-RAG, and QD-RAG SubQ in table 4)"

    subquery: bool = False
    """Retrieve for every sub-query (SubQ); false: retrieve once, for the question."""
    max_steps: int = 6
    """Maximum number of sub-queries."""

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        queries = await run.ask(DECOMPOSE, [("Query", question.question)]) or ()
        queries = list(dict.fromkeys(query.strip() for query in queries if query.strip()))[: self.max_steps]
        shared = await run.search(question.question)
        if not self.subquery:
            run.retrieved(question.question, shared)
        known: list[tuple[str, str, str]] = []
        for i, query in enumerate([*queries, question.question]):
            passages = await run.search(query) if self.subquery else shared
            response = await run.ask(planrag.ANSWER, planrag.answer_fields(query, passages, known))
            answer = response.Response.strip() if response else ""
            known.append((f"Q{i + 1}", query, answer))
            if self.subquery:
                run.retrieved(query, passages, answer)
            elif i < len(queries):
                run.known(query, answer)
        return run.done(known[-1][2])
