"""Two-hop RAG: a second query is written from the passages of the first, and the passages of both are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats.tasks import Task
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Run, Strategy, interleave

FOLLOW = Task("two_hop_follow", "Query:")


@dataclass(frozen=True)
class TwoHopRAG(Strategy):
    """Retrieve for the question and for a second query written from the found passages; read all passages."""

    paper: ClassVar = "after Xiong et al. 2021 (MDR), with a written second query in place of a dense vector"

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        first = await run.search(question.question)
        run.retrieved(question.question, first)
        query = await run.ask(FOLLOW, [("Context", first), ("Question", question.question)]) or question.question
        second = await run.search(query)
        _, answer = await run.read(question.question, interleave([first, second]))
        run.retrieved(query, second, answer)
        return run.done(answer)
