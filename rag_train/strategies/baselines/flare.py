"""FLARE: uncertain sentences are used as queries and written again with the retrieved passages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rag_train.formats import deeprag, reader
from rag_train.llm.base import Completion, Sampling
from rag_train.schema import Passage, Question, Trajectory
from rag_train.strategies.base import Run, Strategy

SENTENCE = Sampling(max_tokens=64, stop=("\n", ". "), logprobs=1)


@dataclass(frozen=True)
class FLARE(Strategy):
    """Write the next sentence; if it is uncertain, search for its certain words and write it again."""

    paper: ClassVar = "Jiang et al. 2023 (FLARE direct, implicit queries); baseline of DeepRAG and DualRAG"
    needs: ClassVar = ("log-probabilities",)

    theta: float = 0.8
    """Retrieve if a token of the sentence has a lower probability."""
    beta: float = 0.4
    """Tokens with a lower probability are not part of the query."""
    max_sentences: int = 8
    """Maximum number of sentences."""

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        thoughts: list[str] = []
        passages: list[Passage] = []
        for _ in range(self.max_sentences):
            ahead = await self._sentence(run, passages, thoughts)
            text = ahead.text
            if min(probabilities(ahead), default=1.0) < self.theta:
                query = sure_part(ahead, self.beta) or question.question
                passages = await run.search(query)
                text = (await self._sentence(run, passages, thoughts)).text
                run.retrieved(query, passages, text)
            text = deeprag.one_line(text)
            if not text or text in thoughts or text.lower().startswith(deeprag.FINAL.lower()):
                break
            thoughts.append(text)
        return run.done(await self._final(run, passages, thoughts), ". ".join(thoughts))

    async def _sentence(self, run: Run, passages: list[Passage], thoughts: list[str]) -> Completion:
        body = reader.prompt(run.question.question, passages, reason=True).removesuffix(reader.THOUGHT)
        lead = " ".join([reader.THOUGHT, *(f"{thought}." for thought in thoughts)])
        return await run.complete("flare", run.prompt("cot_rag", body, lead), SENTENCE)

    async def _final(self, run: Run, passages: list[Passage], thoughts: list[str]) -> str:
        body = reader.prompt(run.question.question, passages, reason=True).removesuffix(reader.THOUGHT)
        lead = " ".join([reader.THOUGHT, *(f"{thought}." for thought in thoughts)]) + f"\n{deeprag.FINAL}"
        prompt = run.prompt("cot_rag", body, lead)
        return (await run.complete("flare", prompt, Sampling(max_tokens=64, stop=("\n",)))).text


def probabilities(completion: Completion) -> list[float]:
    """Return the probability of each generated token."""
    return [math.exp(token.logprob) for token in completion.chosen]


def sure_part(completion: Completion, beta: float) -> str:
    """Return the text without the tokens whose probability is below ``beta`` (implicit query by masking)."""
    kept = zip(completion.chosen, probabilities(completion), strict=True)
    return deeprag.one_line("".join(token.text if chance >= beta else " " for token, chance in kept))
