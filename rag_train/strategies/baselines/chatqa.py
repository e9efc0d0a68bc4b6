"""ChatQA: retrieve, and read the passages in the turns of a chat about a context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats.deeprag import one_line
from rag_train.formats.tasks import Given
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import ANSWER_LINE, Bound, Run, Strategy, strategy


@strategy("chatqa", Bound(calls=1, retrievals=1))
@dataclass(frozen=True)
class ChatQA(Strategy):
    """Retrieve passages for the question, and read them in ChatQA's turns (System, User, Assistant).

    The method's two stages are stages of training; at inference it is a reader. The trained checkpoints are
    Llama3-ChatQA-1.5-8B and -70B; any other model is prompted in the same turns. Ours: the wording of the
    instruction, and passages from the retriever at hand in place of the authors' fine-tuned one.
    """

    paper: ClassVar = "Liu et al. 2024 (ChatQA); baseline of LevelRAG"
    roles: ClassVar = ()

    k: int = 5
    """Number of passages (5 in the paper)."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question.question
        found = await run.search(question, self.k)
        answer = (await run.complete("chatqa", turns(question, found, run.kit.instructions), ANSWER_LINE)).whole
        run.retrieved(question, found, answer)
        return run.done(answer)


def turns(question: str, passages: Sequence[Passage], instructions: Given) -> str:
    """Return the prompt up to the assistant's turn: system message, passages and question, with blank lines."""
    system = [f"System: {instructions['chatqa'].text}"] if instructions else []
    context = [one_line(f"{passage.title} {passage.text}") for passage in passages]
    return "\n\n".join([*system, *context, f"User: {one_line(question)}", "Assistant:"])
