"""Auto-RAG: the model reasons over the retrieved passages, and either refines its query or answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel

from rag_train.formats.tasks import Task
from rag_train.schema import AGAIN, Passage, Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, interleave, strategy


class Move(BaseModel):
    thought: str = ""
    query: str = ""
    answer: str = ""


MOVE = Task("auto_rag", "Move:", Move)
DOCUMENT = Task("auto_rag_document", "Document:")


@strategy("auto-rag", Bound(calls=21, retrievals=10))
@dataclass(frozen=True)
class AutoRAG(Strategy):
    """In each round, write a query or the answer; after too many rounds, write the documents from memory.

    Simplification: in place of free text, the model writes a JSON object with thought, query and answer. The limits
    are those of the authors' code.
    """

    paper: ClassVar = "Yu et al. 2024 (Auto-RAG, Algorithm 1); baseline of DeepRAG"

    retrievals: int = 10
    """Maximum number of rounds with retrieval."""
    recalls: int = 5
    """Maximum number of further rounds, with documents that the model writes itself."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        found: list[Passage] = []
        thoughts: list[str] = []
        for round in range(self.retrievals + self.recalls):
            fields = [("Question", question.question), ("Context", found), ("Thought", thoughts)]
            move = await run.ask(MOVE, fields)
            if move is None:
                break
            thoughts.append(move.thought)
            if move.answer.strip():
                return run.done(move.answer, "\n".join(thoughts))
            query = move.query.strip() or question.question
            if round < self.retrievals:
                passages = await run.search(query)
                run.retrieved(query, passages)
            else:
                text = await run.ask(DOCUMENT, [("Query", query)]) or ""
                passages = [Passage(id=f"recalled-{round}", text=text)]
                run.known(query, text)
            found = interleave([found, passages])
        else:
            run.cut(f"ended after retrievals={self.retrievals} and recalls={self.recalls}")
        _, answer = await run.read(question.question, found, module=AGAIN)
        return run.done(answer, "\n".join(thoughts))
