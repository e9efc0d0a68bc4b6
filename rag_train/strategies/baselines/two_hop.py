"""Two-hop RAG: retrieve, ask once more from what was found, read both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats.tasks import Task
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Run, Strategy, interleave

FOLLOW = Task("two_hop_follow", "Query:")


@dataclass(frozen=True)
class TwoHopRAG(Strategy):
    """Retrieve for the question, then for one query written from what was found; read all of it."""

    paper: ClassVar = "after Xiong et al. 2021 (MDR), with a written second query in place of a dense one"

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        first = await run.search(question.question)
        run.retrieved(question.question, first)
        query = await run.ask(FOLLOW, [("Context", first), ("Question", question.question)]) or question.question
        second = await run.search(query)
        _, answer = await run.read(question.question, interleave([first, second]))
        run.retrieved(query, second, answer)
        return run.done(answer)
