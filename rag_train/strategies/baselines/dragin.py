"""DRAGIN: retrieval at uncertain and important tokens, with a query of the words to which the token attends."""

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
    """Write a thought; if entropy times attention of a token exceeds a threshold, retrieve and rewrite the thought.

    The query consists of the words of prompt and thought to which this token attends most.
    """

    paper: ClassVar = "Su et al. 2024 (RIND, QFS); baseline of DeepRAG and DualRAG"
    needs: ClassVar = ("attention weights (the transformers engine)",)

    threshold: float = 1.0
    """Threshold for the product of entropy (in nats) and attention."""
    query_words: int = 25
    """Maximum number of words of a query."""
    max_sentences: int = 8
    """Maximum number of thoughts."""

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
        """Return the query to search for before ``ahead``; "" if no token of ``ahead`` triggers retrieval."""
        seen = await self.kit.llm.inspect(prompt, ahead)  # pyright: ignore[reportAttributeAccessIssue]
        at = trigger(seen, self.threshold)
        return attended(seen, prompt + ahead, at, self.query_words) if at is not None else ""


def trigger(seen: Inspection, threshold: float) -> int | None:
    """Return the first token of the text that triggers retrieval (RIND), or None.

    A token triggers retrieval if it is not a stop word and its entropy, multiplied by the highest attention of a
    later token to it, exceeds ``threshold``.
    """
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
    """Return the ``count`` words before token ``at`` to which it attends most, in the order of the text (QFS)."""
    words = list(re.finditer(r"\w+", text[: seen.spans[at][0]]))
    scores: dict[int, float] = {}
    for i in range(at):
        start, end = seen.spans[i]
        for n, word in enumerate(words):
            if word.start() < end and start < word.end():
                scores[n] = scores.get(n, 0.0) + float(seen.attention[at, i])
    wanted = [n for n in sorted(scores, key=lambda n: -scores[n]) if words[n][0].lower() not in _STOP_WORDS]
    return " ".join(words[n][0] for n in sorted(wanted[:count]))
