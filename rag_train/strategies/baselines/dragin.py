"""DRAGIN: retrieve where the model is unsure of a token that matters, and search for what it attends to there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bm25s.stopwords import STOPWORDS_EN

from rag_train.errors import UserError
from rag_train.formats import deeprag, reader
from rag_train.llm.base import Sampling
from rag_train.schema import Passage, Question, Trajectory
from rag_train.strategies.base import Run, Strategy

if TYPE_CHECKING:
    from rag_train.llm.transformers import Inspection

_STOP_WORDS = frozenset(STOPWORDS_EN)


@dataclass(frozen=True)
class DRAGIN(Strategy):
    """Write a thought; at the first token whose entropy times attention is over a threshold, retrieve and rewrite.

    The query is the words of prompt and thought that this token attends to most.
    """

    paper: ClassVar = "Su et al. 2024 (RIND, QFS); baseline of DeepRAG and DualRAG"
    needs: ClassVar = ("attention weights (the transformers engine)",)

    threshold: float = 1.0
    query_words: int = 25
    max_sentences: int = 8

    def __post_init__(self) -> None:
        if not hasattr(self.kit.llm, "inspect"):
            raise UserError(f"--strategy {self.name}: needs attention weights; give --engine transformers")

    async def answer(self, question: Question) -> Trajectory:
        run = Run(self, question)
        text, passages = "", []
        for _ in range(self.max_sentences):
            prompt = self._prompt(run, passages, text)
            ahead = (await run.complete("dragin", prompt, Sampling(max_tokens=64, stop=("\n", ". ")))).text
            if not ahead.strip() or ahead in text:
                break
            query = await self._query(prompt, ahead)
            if query:
                passages = await run.search(query)
                prompt = self._prompt(run, passages, text)
                ahead = (await run.complete("dragin", prompt, Sampling(max_tokens=64, stop=("\n", ". ")))).text
                run.retrieved(query, passages, ahead)
            text += f" {deeprag.one_line(ahead)}."
        prompt = self._prompt(run, passages, f"{text}\n{deeprag.FINAL}")
        answer = (await run.complete("dragin", prompt, Sampling(max_tokens=64, stop=("\n",)))).text
        return run.done(answer, text.strip())

    def _prompt(self, run: Run, passages: list[Passage], text: str) -> str:
        body = reader.prompt(run.question.question, passages, reason=True).removesuffix(reader.THOUGHT)
        return run.prompt("cot_rag", body, reader.THOUGHT + text)

    async def _query(self, prompt: str, ahead: str) -> str:
        """What to search for before going on after ``prompt``; "" if no token of ``ahead`` asks for it."""
        seen = await self.kit.llm.inspect(prompt, ahead)  # pyright: ignore[reportAttributeAccessIssue]
        at = trigger(seen, self.threshold)
        return attended(seen, prompt + ahead, at, self.query_words) if at is not None else ""


def trigger(seen: Inspection, threshold: float) -> int | None:
    """RIND: the first token of the new text with entropy x attention from later tokens over ``threshold``, no stop
    word; None if there is none."""
    for i in range(seen.start, len(seen.tokens)):
        word = seen.tokens[i].strip().lower()
        if not re.search(r"\w", word) or word in _STOP_WORDS:
            continue
        later = seen.attention[i + 1 :, i]
        weight = float(later.max()) if len(later) else 0.0
        if seen.entropy[i - seen.start] * weight > threshold:
            return i
    return None


def attended(seen: Inspection, text: str, at: int, count: int) -> str:
    """QFS: the ``count`` words before token ``at`` that it attends to most, in the order of the text."""
    words = list(re.finditer(r"\w+", text[: seen.spans[at][0]]))
    scores: dict[int, float] = {}
    for i in range(at):
        start, end = seen.spans[i]
        for n, word in enumerate(words):
            if word.start() < end and start < word.end():
                scores[n] = scores.get(n, 0.0) + float(seen.attention[at, i])
    wanted = [n for n in sorted(scores, key=lambda n: -scores[n]) if words[n][0].lower() not in _STOP_WORDS]
    return " ".join(words[n][0] for n in sorted(wanted[:count]))
