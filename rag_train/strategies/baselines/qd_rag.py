"""QD-RAG: a single decomposition of the question into sub-queries, which are answered in sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.answers import normalize
from rag_train.formats import planrag
from rag_train.formats.tasks import Task
from rag_train.schema import Plan, PlanNode, Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy

DECOMPOSE = Task("qd_rag", "Subqueries:", list[str])
ANSWER = Task("qd_rag_answer", "Generation:", planrag.Response)


@strategy("qd-rag-subq", Bound(calls=8, retrievals=7), subquery=True)
@strategy("qd-rag", Bound(calls=8, retrievals=1))
@dataclass(frozen=True)
class QDRAG(Strategy):
    """Decompose the question, answer each sub-query given the previous answers, then the question given all.

    The sub-queries are the trajectory's plan, each the child of the one before it. Its depth is therefore their
    number, which PlanRAG's figure 4b compares with the depth of PlanRAG's own plans.
    """

    paper: ClassVar = "Patel et al. 2022; PlanRAG, appendix B (QD-RAG, and QD-RAG SubQ in table 4)"
    roles: ClassVar = ()

    subquery: bool = False
    """Retrieve for every sub-query (SubQ); false: retrieve once, for the question."""
    max_steps: int = 6
    """Maximum number of sub-queries. Ours: the paper sets no limit."""

    async def solve(self, run: Run) -> Trajectory:
        queries = await self._decompose(run)
        names = [f"Q{i + 1}.1" for i in range(len(queries) - 1)]  # the last query is the question itself
        nodes = zip(names, queries[:-1], strict=True)
        run.plan = Plan(
            nodes=[PlanNode(id=name, question=q, parents=names[:i][-1:]) for i, (name, q) in enumerate(nodes)]
        )
        run.show("plan", run.plan)
        shared = None
        if not self.subquery:
            shared = await run.search(run.question.question)
            run.retrieved(run.question.question, shared)
        known: list[tuple[str, str, str]] = []
        for i, (node, query) in enumerate(zip([*names, ""], queries, strict=True)):
            passages = await run.search(query) if shared is None else shared
            response = await run.ask(ANSWER, planrag.answer_fields(query, passages, known))
            answer = response.Response.strip() if response else ""
            known.append((f"Q{i + 1}", query, answer))
            if shared is None:
                run.retrieved(query, passages, answer, node=node)
            elif node:
                run.known(query, answer, node=node)
        return run.done(known[-1][2])

    async def _decompose(self, run: Run) -> list[str]:
        """Return the sub-queries and then the question, which is asked once if it is its own only sub-query."""
        question = run.question.question
        written = await run.ask(DECOMPOSE, [("Query", question)]) or ()
        queries = {normalize(query): query.strip() for query in written if query.strip()}
        queries.pop(normalize(question), None)
        return [*run.first(list(queries.values()), self.max_steps, "sub-queries"), question]
