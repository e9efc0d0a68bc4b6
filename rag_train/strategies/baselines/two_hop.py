"""2HopRAG: each passage found for the question is a query for more passages, and all are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats.deeprag import one_line
from rag_train.schema import Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, interleave, strategy


@strategy("two-hop-rag", Bound(calls=1, retrievals=4))
@dataclass(frozen=True)
class TwoHopRAG(Strategy):
    """Retrieve for the question, retrieve again with each found passage as the query, and read all passages.

    The paper finds 10 passages for each of the 1 + 10 queries: give --passages 10 for its up to 110 passages. Ours:
    a passage's query is its title and its text.
    """

    paper: ClassVar = "DualRAG (Cheng et al. 2025), appendix H.1, table 10"

    async def solve(self, run: Run) -> Trajectory:
        question = run.question.question
        first = await run.search(question)
        run.retrieved(question, first)
        queries = list(dict.fromkeys(one_line(f"{passage.title} {passage.text}") for passage in first))
        second = await run.search_all(queries)
        _, answer = await run.read(question, interleave([first, second]))
        if queries:
            run.retrieved(question, second, answer, queries=queries)
        return run.done(answer)
