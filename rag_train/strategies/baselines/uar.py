"""UAR: up to four yes/no questions about the user's question decide whether to retrieve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.formats.tasks import Task
from rag_train.schema import Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy, together
from rag_train.strategies.baselines.taare import single_step

YesNo = Literal["yes", "no"]
INTENT = Task("uar_intent", "Intent:", YesNo)
KNOWLEDGE = Task("uar_knowledge", "Knowledge:", YesNo)
TIME = Task("uar_time", "Time:", YesNo)
SELF = Task("uar_self", "Memory:", YesNo)


@strategy("uar", Bound(calls=5, retrievals=1))
@dataclass(frozen=True)
class UAR(Strategy):
    """Retrieve if the user asks for it, or if the question needs knowledge that changes or that the model lacks.

    As in the paper, the four questions are independent and asked at the same time.

    Simplification: a single fine-tuned model that answers yes or no to four questions replaces the four linear
    classifiers on the model's hidden state.
    """

    paper: ClassVar = "Cheng et al. 2024 (UAR, the criteria tree); baseline of DeepRAG"
    roles: ClassVar = ("classifier", "reader")
    needs: ClassVar = ("a classifier checkpoint (role classifier; recipes/uar.yaml)",)

    async def solve(self, run: Run) -> Trajectory:
        return run.done(await single_step(run, retrieve=await self._retrieve(run)))

    async def _retrieve(self, run: Run) -> bool:
        fields = [("Question", run.question.question)]
        verdicts = await together(run.ask(task, fields, "classifier") for task in (INTENT, KNOWLEDGE, TIME, SELF))
        intent, knowledge, time, remembered = (verdict == "yes" for verdict in verdicts)
        return intent or (knowledge and (time or not remembered))
