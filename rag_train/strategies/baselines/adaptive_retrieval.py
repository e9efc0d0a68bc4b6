"""Adaptive Retrieval: retrieve for what is not popular."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Run, Strategy
from rag_train.strategies.baselines.taare import single_step


@dataclass(frozen=True)
class AdaptiveRetrieval(Strategy):
    """Retrieve where the subject's popularity is below a threshold; where it is unknown, retrieve."""

    paper: ClassVar = "Mallen et al. 2023; baseline of HANRAG"
    needs: ClassVar = ("popularity in the questions' metadata (PopQA's s_pop)",)

    threshold: float = 10_000
    """Monthly page views; the paper tunes it per relation on dev questions."""

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        popularity = question.metadata.get("s_pop")
        known = isinstance(popularity, int | float) and popularity >= self.threshold
        run.notes["popularity"] = str(popularity)
        return run.done(await single_step(run, retrieve=not known))
