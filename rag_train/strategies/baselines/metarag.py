"""MetaRAG: monitoring of the answer, evaluation of the missing knowledge, and planning of the next action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.answers import f1
from rag_train.formats.tasks import Fields, Task
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, interleave, strategy, together

INTERNAL = Task("metarag_internal", "Known:", Literal["yes", "no"])
EXTERNAL = Task("metarag_external", "Told:", Literal["yes", "no"])
QUERY = Task("metarag_query", "Query:")


@strategy("metarag", Bound(calls=30, retrievals=6))
@dataclass(frozen=True)
class MetaRAG(Strategy):
    """Answer in two ways; if the answers disagree, find out which knowledge is missing and retrieve or rethink.

    Simplifications: the monitor compares the answer after a chain of thought with the model's own short answer, not
    with that of an expert model, and the model itself judges its knowledge, without an NLI model.
    """

    paper: ClassVar = "Zhou et al. 2024; baseline of DualRAG"

    iterations: int = 5
    """Maximum number of iterations."""
    agreement: float = 0.4
    """Minimum token F1 between the two answers at which the monitor accepts them."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        text = question.question
        found: list[Passage] = await run.search(text)
        run.retrieved(text, found)
        used, reasoning, answer = found, "", None
        for _ in range(self.iterations):
            (reasoning, answer), (_, expert) = await together(
                [
                    run.read(text, used, name="cot_rag" if used else "cot", reason=True),
                    run.read(text, used),
                ]
            )
            if f1(expert, [answer or ""]) >= self.agreement:
                break
            fields: Fields = [("Context", found), ("Question", text), ("Answer", answer or "")]
            internal, external = await together(run.ask(task, fields) for task in (INTERNAL, EXTERNAL))
            if external == "yes":  # the passages suffice: only the reasoning was wrong
                used = found
                answer = expert if internal != "yes" else answer
                break
            if internal == "yes":
                used = []
                continue
            query = await run.ask(QUERY, [*fields, ("Thought", reasoning)])
            if not query:
                break
            more = await run.search(query)
            run.retrieved(query, more)
            used = found = interleave([found, more])
        else:
            run.cut(f"ended after iterations={self.iterations}")
        return run.done(answer, reasoning)
