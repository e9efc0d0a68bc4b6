"""Adaptive Retrieval: retrieval only for questions about unpopular subjects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.schema import Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy
from rag_train.strategies.baselines.taare import single_step


@strategy("adaptive-retrieval", Bound(calls=1, retrievals=1))
@dataclass(frozen=True)
class AdaptiveRetrieval(Strategy):
    """Retrieve if the subject's popularity is below a threshold or unknown."""

    paper: ClassVar = "Mallen et al. 2023; baseline of HANRAG"
    needs: ClassVar = ("the popularity in the questions' metadata (PopQA's s_pop)",)

    threshold: float = 10_000
    """Popularity in monthly page views. The paper tunes the threshold for each relation on dev questions."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        popularity = question.metadata.get("s_pop")
        known = isinstance(popularity, int | float) and popularity >= self.threshold
        run.notes["popularity"] = str(popularity)
        return run.done(await single_step(run, retrieve=not known))
