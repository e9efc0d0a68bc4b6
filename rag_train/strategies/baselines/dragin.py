"""DRAGIN: retrieval at uncertain and important tokens, with a query of the words to which the token attends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rag_train.formats import deeprag
from rag_train.schema import Passage, Trajectory
from rag_train.strategies.base import Bound, Need, Run, Strategy, strategy
from rag_train.strategies.baselines.sentences import final_answer, look_ahead, thought_prompt

if TYPE_CHECKING:
    from rag_train.llm.transformers import Inspection

_STOP_WORDS = {
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not",
    "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they",
    "this", "to", "was", "will", "with",
}  # fmt: skip
"""Lucene's English stop words."""


@strategy("dragin", Bound(calls=17, retrievals=8))
@dataclass(frozen=True)
class DRAGIN(Strategy):
    """Write a thought; if entropy times attention of a token exceeds a threshold, retrieve and go on from there.

    The query consists of the words of prompt and thought to which this token attends most. The thought is cut
    before the token, and continued with the passages.
    """

    paper: ClassVar = "Su et al. 2024 (RIND, QFS); baseline of DeepRAG and DualRAG"
    roles: ClassVar = ()
    abilities: ClassVar = (Need("attention"),)

    threshold: float = 1.0
    """Threshold for the product of entropy (in nats) and attention. Ours: the paper tunes it for each dataset."""
    query_words: int = 25
    """Maximum number of words of a query."""
    max_sentences: int = 8
    """Maximum number of thoughts."""

    async def solve(self, run: Run) -> Trajectory:
        thoughts: list[str] = []
        passages: list[Passage] = []
        for _ in range(self.max_sentences):
            text = "".join(f" {thought}" for thought in thoughts)
            ahead, _ = await look_ahead(run, "dragin", passages, text)
            kept, query = await self._query(thought_prompt(run, passages, text), ahead)
            if query:
                passages = await run.search(query)
                rest, _ = await look_ahead(run, "dragin", passages, text + kept)
                ahead = kept + rest
                run.retrieved(query, passages, ahead)
            ahead = deeprag.one_line(ahead)
            if not ahead or ahead in thoughts or ahead.lower().startswith(deeprag.FINAL.lower()):
                break
            thoughts.append(ahead)
        else:
            run.cut(f"ended after max_sentences={self.max_sentences}")
        text = " ".join(thoughts)
        return run.done(await final_answer(run, "dragin", passages, f" {text}" if text else ""), text)

    async def _query(self, prompt: str, ahead: str) -> tuple[str, str]:
        """Return the part of ``ahead`` before the token that triggers retrieval, and the query; "" if none does."""
        if not ahead.strip():
            return "", ""
        llm: Any = self.kit.llm
        seen = await llm.inspect(prompt, ahead)
        at = trigger(seen, prompt + ahead, self.threshold)
        if at is None:
            return "", ""
        kept = (prompt + ahead)[len(prompt) : seen.spans[at][0]].rstrip()
        return kept, attended(seen, prompt + ahead, at, self.query_words)


def trigger(seen: Inspection, text: str, threshold: float) -> int | None:
    """Return the first token of the text that triggers retrieval (RIND), or None.

    A token triggers retrieval if it is not a stop word and its entropy, multiplied by the highest attention of a
    later token to it, exceeds ``threshold``. Words are read from the text, not from the vocabulary's spelling.
    """
    for i in range(seen.start, len(seen.tokens)):
        word = text[slice(*seen.spans[i])].strip().lower()
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
