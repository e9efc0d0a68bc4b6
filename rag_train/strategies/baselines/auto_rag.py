"""Auto-RAG: a conversation of the model with the retriever, in the turns of the released checkpoint.

    system: <instruction>
    user: Question: <question>
    assistant: <reasoning> Refined Query: <query>
    user: Retrieved Document_1: <passages>
    assistant: <reasoning> Final Answer: <answer>

Without a chat template or without instructions, each turn is a line of text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rag_train.formats.deeprag import one_line, question_prompt
from rag_train.formats.prompting import conversation
from rag_train.formats.tasks import Given, Task, user_turn
from rag_train.llm.base import Sampling
from rag_train.schema import AGAIN, Passage, Trajectory
from rag_train.strategies.base import Bound, Run, Strategy, strategy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DOCUMENT = Task("auto_rag_document", "Document:", max_tokens=200)
QUERY, FINAL = "Refined Query:", "Final Answer:"
_QUERY = re.compile(r".*query:", re.IGNORECASE | re.DOTALL)
_FINAL = re.compile(r".*final answer\s*:?", re.IGNORECASE | re.DOTALL)


class Move(NamedTuple):
    """What the model's turn asks for: a query, or the answer; neither if it follows no format or was cut."""

    query: str = ""
    answer: str = ""


@strategy("auto-rag", Bound(calls=22, retrievals=10))
@dataclass(frozen=True)
class AutoRAG(Strategy):
    """Search for the refined query of each turn; after too many turns, have the model write the documents itself.

    Turns and limits are those of the authors' code, whose checkpoint follows them. After a turn that follows no
    format, the last query finds further passages. Ours: without an answer at the end, the question is answered from
    what was found; the code leaves it unanswered, even if the last turns answer it.
    """

    paper: ClassVar = "Yu et al. 2024 (Auto-RAG, Algorithm 1); baseline of DeepRAG"

    retrievals: int = 10
    """Maximum number of turns after which passages are retrieved."""
    recalls: int = 5
    """Maximum number of further turns, after documents that the model writes itself."""
    passages: int = 2
    """Number of passages in a turn, of those that were in none before."""
    candidates: int = 10
    """Number of passages to retrieve for a query, of which the new ones are taken (the default of FlexRAG)."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question.question
        turns, query, number = [question_prompt(question).strip()], question, 0
        found: dict[str, Passage] = {}
        for round in range(self.retrievals + self.recalls + 1):
            retrieves = round < self.retrievals
            move = await self._move(run, turns, 200 if retrieves else 150)
            if move.answer:
                return run.done(move.answer, "\n".join(turns[1::2]))
            if round == self.retrievals + self.recalls or not (retrieves or move.query):
                break
            query, number = move.query or query, number + bool(move.query)
            if retrieves:
                more = await run.search(query, self.candidates)
                new = [passage for passage in more if passage.id not in found][: self.passages]
                run.retrieved(query, new)
            else:
                new = [Passage(id=f"recalled-{round}", text=await self._document(run, query))]
                run.known(query, new[0].text)
            found |= {passage.id: passage for passage in new}
            turns.append(retrieved(number, new))
        run.cut(f"no answer after retrievals={self.retrievals} and recalls={self.recalls}")
        _, answer = await run.read(question, list(found.values()), module=AGAIN)
        return run.done(answer, "\n".join(turns[1::2]))

    async def _move(self, run: Run, turns: list[str], most: int) -> Move:
        """Have the model write its turn, and append it to ``turns``."""
        tokenizer, instructions = self.kit.llm.tokenizer, self.kit.instructions
        stop = () if instructions and tokenizer.chat_template else ("\n",)
        sampling = Sampling(max_tokens=most, stop=stop)
        written = await run.complete("auto_rag", prompt(tokenizer, instructions, turns), sampling)
        turns.append(written.text.strip())
        return move_of(written.whole or "")

    async def _document(self, run: Run, query: str) -> str:
        """Have the model write a document for ``query``; the prompt is in no turn."""
        fields = [("Question", run.question.question), ("Query", query)]
        text = user_turn(self.kit.instructions, DOCUMENT.name, fields) + DOCUMENT.lead
        written = await run.complete(DOCUMENT.name, text, DOCUMENT.sampling())
        return one_line(written.whole or "")


def prompt(tokenizer: PreTrainedTokenizerBase, instructions: Given, turns: Sequence[str]) -> str:
    """Return the conversation up to the model's turn; the turns of user and model alternate."""
    system = instructions["auto_rag"].text if instructions else ""
    if system and tokenizer.chat_template:
        return conversation(tokenizer, system, turns)
    return (f"{system}\n\n" if system else "") + "".join(f"{one_line(turn)}\n" for turn in turns)


def retrieved(number: int, passages: Sequence[Passage]) -> str:
    """Return the turn with the passages for the ``number``-th query."""
    return f"Retrieved Document_{number}: {' '.join(one_line(passage.text) for passage in passages)}".strip()


def move_of(text: str) -> Move:
    """Return what a turn asks for. A query comes before an answer."""
    if query := _QUERY.match(text):
        return Move(query=one_line(text[query.end() :].replace("[Dense]", "")))
    final = _FINAL.match(text)
    return Move(answer=one_line(text[final.end() :])) if final else Move()
