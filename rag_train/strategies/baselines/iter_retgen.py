"""Iter-RetGen and ITRG: the generated text is the next query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rag_train.formats.tasks import Task
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy

DOCUMENT = Task("itrg", "Document:")


@strategy("itrg", Bound(calls=4, retrievals=3), mode="refine")
@strategy("iter-retgen", Bound(calls=6, retrievals=3))
@dataclass(frozen=True)
class IterRetGen(Strategy):
    """Answer with a chain of thought, search with question and thought, and repeat.

    Ours: the number of iterations, and that ITRG's answer is read from its last document.
    """

    paper: ClassVar = "Iter-RetGen (Shao et al. 2023); ITRG (Feng et al. 2023), baseline of LevelRAG"

    mode: Literal["retgen", "refine", "refresh"] = "retgen"
    """retgen: Iter-RetGen; refine and refresh: ITRG, which generates a document from the previous document and new
    passages (refine) or from new passages only (refresh)."""
    iterations: int = 3
    """Number of iterations."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        text, reasoning, answer = "", "", None
        for round in range(self.iterations):
            query = f"{question.question} {text}".strip()
            passages = await run.search(query)
            if self.mode == "retgen":
                last = round + 1 == self.iterations  # before it, the text is only a query
                reasoning, answer = await run.read(
                    question.question, passages, name="cot_rag", reason=True, again=last
                )
                text = f"{reasoning} {answer or ''}".strip()
            else:
                text = await self._document(run, passages, text)
                reasoning = text
            run.retrieved(question.question, passages, answer, queries=[query], round=round)
        if self.mode != "retgen":
            document = Passage(id="generated", title="", text=text)
            answer = (await run.read(question.question, [document] if text else []))[1]
        return run.done(answer, reasoning)

    async def _document(self, run: Run, passages: list[Passage], last: str) -> str:
        before = [("Last", last)] if last and self.mode == "refine" else []
        fields = [("Context", passages), *before, ("Question", run.question.question)]
        return await run.ask(DOCUMENT, fields) or last
