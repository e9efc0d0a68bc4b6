"""IRCoT: retrieval after each sentence of a chain of thought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats.tasks import Task
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, interleave, strategy

THOUGHT = Task("ircot", "Next thought:")
END = "the answer is"


@strategy("ircot", Bound(calls=6, retrievals=5))
@dataclass(frozen=True)
class IRCoT(Strategy):
    """Alternate between writing a sentence and searching with it until a sentence states the answer; then read.

    Ours: an instruction in place of the in-context examples, and a reader that answers directly.
    """

    paper: ClassVar = "Trivedi et al. 2023; baseline of DualRAG, HANRAG and LevelRAG"

    max_steps: int = 5
    """Maximum number of sentences (DualRAG's limit, section 4.3; 8 in IRCoT's paper, for HANRAG's rows)."""
    most_passages: int = 15
    """Maximum number of passages to keep (the paper's limit)."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        found: list[Passage] = await run.search(question.question)
        run.retrieved(question.question, found)
        thoughts: list[str] = []
        for step in range(self.max_steps):
            fields = [("Context", found), ("Question", question.question), ("Thought", thoughts)]
            thought = await run.ask(THOUGHT, fields)
            if not thought or thought in thoughts:
                break
            thoughts.append(thought)
            if END in thought.lower():
                break
            if step + 1 == self.max_steps:
                run.cut(f"ended after max_steps={self.max_steps}")
                break
            more = await run.search(thought)
            run.retrieved(thought, more)
            found = interleave([found, more])[: self.most_passages]
        _, answer = await run.read(question.question, found)
        return run.done(answer, "\n".join(thoughts))
