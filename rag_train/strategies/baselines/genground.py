"""GenGround: the model generates a sub-question with an answer, and then grounds the answer in passages.

The docstring of `Hop` is part of the JSON schema that engines receive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel

from rag_train.formats.tasks import Task
from rag_train.schema import Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy


class Hop(BaseModel):
    """The next sub-question with a first answer; or, with ``final``, that nothing is left to ask."""

    question: str = ""
    answer: str = ""
    final: bool = False


GENERATE = Task("genground_generate", "Next:", Hop)
GROUND = Task("genground_ground", "Answer:")


@strategy("genground", Bound(calls=10, retrievals=5))
@dataclass(frozen=True)
class GenGround(Strategy):
    """Generate the next sub-question and answer it from memory; retrieve for it and correct the answer.

    Ours: the first batch with evidence corrects the answer in one call, which does not cite the evidence first. The
    model is prompted, as in DualRAG's tables, not distilled.
    """

    paper: ClassVar = "Shi et al. 2024; baseline of DualRAG"
    roles: ClassVar = ()

    max_steps: int = 5
    """Maximum number of sub-questions."""
    batch: int = 3
    """Number of passages that are read at a time, until a batch contains evidence (batch grounding)."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        known: list[str] = []
        last = None
        for _ in range(self.max_steps):
            hop = await run.ask(GENERATE, [("Question", question.question), ("Known", known)])
            if hop is None or hop.final or not hop.question.strip():
                last = hop.answer if hop and hop.answer.strip() else last
                break
            passages = await run.search(hop.question)
            answer = hop.answer
            for start in range(0, len(passages), self.batch):
                fields = [
                    ("Context", passages[start : start + self.batch]),
                    ("Question", hop.question),
                    ("Draft", hop.answer),
                ]
                grounded = await run.ask(GROUND, fields)
                if grounded and grounded.lower() != "empty":
                    answer = grounded
                    break
            run.retrieved(hop.question, passages, answer)
            known.append(f"Q={hop.question} A={answer}")
            last = answer
        else:
            run.cut(f"ended after max_steps={self.max_steps}")
        return run.done(last)
