"""QD-RAG: a single decomposition of the question into sub-queries, which are answered in sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.answers import normalize
from rag_train.formats import planrag
from rag_train.formats.tasks import Task
from rag_train.schema import Trajectory
from rag_train.strategies.base import Run, Strategy

DECOMPOSE = Task("qd_rag", "Subqueries:", list[str], max_tokens=192)
ANSWER = Task("qd_rag_answer", "Generation:", planrag.Response, max_tokens=96)


@dataclass(frozen=True)
class QDRAG(Strategy):
    """Decompose the question, answer each sub-query given the previous answers, then the question given all."""

    paper: ClassVar = "Patel et al. 2022; PlanRAG, appendix B (QD-RAG, and QD-RAG SubQ in table 4)"
    roles: ClassVar = ()

    subquery: bool = False
    """Retrieve for every sub-query (SubQ); false: retrieve once, for the question."""
    max_steps: int = 6
    """Maximum number of sub-queries. Ours: the paper sets no limit."""

    async def solve(self, run: Run) -> Trajectory:
        queries = await self._decompose(run)
        shared = None
        if not self.subquery:
            shared = await run.search(run.question.question)
            run.retrieved(run.question.question, shared)
        known: list[tuple[str, str, str]] = []
        for i, query in enumerate(queries):
            passages = await run.search(query) if shared is None else shared
            response = await run.ask(ANSWER, planrag.answer_fields(query, passages, known))
            answer = response.Response.strip() if response else ""
            known.append((f"Q{i + 1}", query, answer))
            if shared is None:
                run.retrieved(query, passages, answer)
            elif i + 1 < len(queries):
                run.known(query, answer)
        return run.done(known[-1][2])

    async def _decompose(self, run: Run) -> list[str]:
        """Return the sub-queries and then the question, which is asked once if it is its own only sub-query."""
        question = run.question.question
        written = await run.ask(DECOMPOSE, [("Query", question)]) or ()
        queries = {normalize(query): query.strip() for query in written if query.strip()}
        queries.pop(normalize(question), None)
        return [*run.first(list(queries.values()), self.max_steps, "sub-queries"), question]
