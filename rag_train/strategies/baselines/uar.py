"""UAR: up to four yes/no questions about the user's question decide whether to retrieve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.formats.tasks import Task
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Run, Strategy
from rag_train.strategies.baselines.taare import single_step

YesNo = Literal["yes", "no"]
INTENT = Task("uar_intent", "Intent:", YesNo, max_tokens=4)
KNOWLEDGE = Task("uar_knowledge", "Knowledge:", YesNo, max_tokens=4)
TIME = Task("uar_time", "Time:", YesNo, max_tokens=4)
SELF = Task("uar_self", "Memory:", YesNo, max_tokens=4)


@dataclass(frozen=True)
class UAR(Strategy):
    """Retrieve if the user asks for it, or if the question needs knowledge that changes or that the model lacks.

    Simplification: a single fine-tuned model that answers yes or no to four questions replaces the four linear
    classifiers on the model's hidden state.
    """

    paper: ClassVar = "Cheng et al. 2024 (UAR, the criteria tree); baseline of DeepRAG"
    needs: ClassVar = ("a classifier checkpoint (role classifier; recipes/uar.yaml)",)

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        return run.done(await single_step(run, retrieve=await self._retrieve(run)))

    async def _retrieve(self, run: Run) -> bool:
        async def says(task: Task) -> bool:
            return await run.ask(task, [("Question", run.question.question)], "classifier") == "yes"

        if await says(INTENT):
            return True
        if not await says(KNOWLEDGE):
            return False
        return await says(TIME) or not await says(SELF)
