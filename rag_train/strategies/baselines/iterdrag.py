"""IterDRAG: sequential sub-queries, each answered from retrieved passages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats import deeprag, reader
from rag_train.formats.deeprag import FINAL, FOLLOW_UP, INTERMEDIATE
from rag_train.schema import Trajectory
from rag_train.strategies.base import ANSWER_LINE, Bound, Run, Strategy, interleave, strategy


@strategy("iterdrag", Bound(calls=11, retrievals=6))
@dataclass(frozen=True)
class IterDRAG(Strategy):
    """Retrieve for the question, then for each sub-query, and answer each until the final answer.

    Simplification: the only in-context demonstrations are those of ``prompts/iterdrag.txt``, without documents.
    """

    paper: ClassVar = "Yue et al. 2024; baseline of DeepRAG"
    roles: ClassVar = ()

    max_steps: int = 5
    """Maximum number of sub-queries (5 in the paper)."""

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        found = await run.search(question.question)
        run.retrieved(question.question, found)
        text = ""

        async def line(lead: str) -> str:
            prompt = run.prompt("iterdrag", reader.fields(question.question, found), begun=text + lead)
            return deeprag.one_line((await run.complete("iterdrag", prompt, ANSWER_LINE)).whole or "")

        for _ in range(self.max_steps):
            parsed = deeprag.parse(await line(""))
            if parsed.answer is not None or parsed.open_subquery is None:
                if parsed.answer is not None:
                    return run.done(parsed.answer, text)
                break
            more = await run.search(parsed.open_subquery)
            found = interleave([found, more])
            text += f"{FOLLOW_UP} {parsed.open_subquery}\n"
            answer = await line(INTERMEDIATE)
            text += f"{INTERMEDIATE} {answer}\n"
            run.retrieved(parsed.open_subquery, more, answer)
        else:
            run.cut(f"ended after max_steps={self.max_steps}")
        return run.done(await line(FINAL), text)
