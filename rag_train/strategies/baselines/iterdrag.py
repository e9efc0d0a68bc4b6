"""IterDRAG: sub-queries one after the other, each retrieved for and answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats import deeprag
from rag_train.formats.deeprag import FINAL, FOLLOW_UP, INTERMEDIATE
from rag_train.llm.base import Sampling
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Run, Strategy, interleave

LINE = Sampling(max_tokens=64, stop=("\n",))


@dataclass(frozen=True)
class IterDRAG(Strategy):
    """Passages first; then "Follow up:", more passages and "Intermediate answer:", until the final answer.

    Simplified: no in-context demonstrations with documents of their own beside those of ``prompts/iterdrag.txt``.
    """

    paper: ClassVar = "Yue et al. 2024; baseline of DeepRAG"

    max_steps: int = 5

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        found = await run.search(question.question)
        run.retrieved(question.question, found)
        text = ""

        async def line(lead: str) -> str:
            body = deeprag.context_lines(found) + deeprag.question_prompt(question.question)
            prompt = run.prompt("iterdrag", body, text + lead)
            return deeprag.one_line((await run.complete("iterdrag", prompt, LINE)).text)

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
        return run.done(await line(FINAL), text)
