"""Adaptive-RAG: a classifier of the question's complexity chooses between no, one and several retrievals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.formats.tasks import Task
from rag_train.schema import Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy
from rag_train.strategies.baselines.ircot import IRCoT
from rag_train.strategies.baselines.taare import single_step

CLASSIFY = Task("adaptive_rag", "Complexity:", Literal["A", "B", "C"])


@strategy("adaptive-rag", Bound(calls=7, retrievals=5))
@dataclass(frozen=True)
class AdaptiveRAG(Strategy):
    """Classify the question's complexity, then answer from memory (A), retrieve once (B) or use IRCoT (C)."""

    paper: ClassVar = "Jeong et al. 2024; baseline of HANRAG"
    roles: ClassVar = ("classifier", "reader")
    needs: ClassVar = ("a classifier checkpoint (role classifier; recipes/adaptive_rag.yaml)",)

    max_steps: int = 5
    """Maximum number of sentences of IRCoT."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        label = await run.ask(CLASSIFY, [("Question", question.question)], "classifier") or "B"
        run.notes["complexity"] = label
        if label != "C":
            return run.done(await single_step(run, retrieve=label == "B"))
        return await IRCoT(self.kit, max_steps=self.max_steps).solve(run)
