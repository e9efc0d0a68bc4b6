"""TAARE: the model is asked, with today's date, whether retrieval is needed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import ClassVar, Literal

from rag_train.formats.tasks import Task
from rag_train.schema import Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy

DECIDE = Task("taare", "Answer:", Literal["[Yes]", "[No]"])


@strategy("taare", Bound(calls=2, retrievals=1))
@dataclass(frozen=True)
class TAARE(Strategy):
    """Ask the model whether the question needs external knowledge; if so, retrieve before answering.

    Ours: two worked examples, one for each decision, in place of the paper's demonstrations.
    """

    paper: ClassVar = "Zhang et al. 2024 (RetrievalQA); baseline of DeepRAG"

    today: str = str(date.today())
    """Date that is given to the model."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        decision = await run.ask(DECIDE, [("Today", self.today), ("Question", question.question)])
        return run.done(await single_step(run, retrieve=decision != "[No]"))


async def single_step(run: Run, *, retrieve: bool) -> str | None:
    """Answer from retrieved passages or from memory: the single step of methods that decide only once."""
    question = run.question.question
    passages = await run.search(question) if retrieve else []
    _, answer = await run.read(question, passages)
    if retrieve:
        run.retrieved(question, passages, answer)
    else:
        run.known(question, answer)
    return answer
