"""Leaks of evaluation questions into training data, found by normalised text and by entity."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Literal

from rag_train.answers import normalize
from rag_train.jobs.items import Outcome, Rejected
from rag_train.questions.load import load_questions
from rag_train.schema import Question

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0]"
)
"""Characters that are not shown: soft hyphens, zero-width spaces, marks of direction and of variants."""
_QUOTES = re.compile("[\"'`´‘’‚‛“”„‟‹›«»′″＂＇]")
_DASHES = re.compile("[-‐‑‒–—―−－]")

Leak = Literal["text", "entity"]
Work = Callable[[Any], Coroutine[Any, Any, Outcome]]


class HeldOutQuestions:
    """Questions kept for evaluation: their texts, the subqueries of their hops, the entities they start from."""

    def __init__(self, questions: Iterable[Question]):
        self._questions: set[str] = set()
        self._hops: set[str] = set()
        self._roots: set[str] = set()
        for question in questions:
            self._questions.add(folded(question.question))
            self._hops |= _hops(question)
            self._roots |= _roots(question)

    def leak(self, question: Question) -> Leak | None:
        """Return how ``question`` leaks a held-out question, or None.

        text: it has the text of a held-out question or of one of its hops, or one of its own hops has the text of a
        held-out question. entity: it starts from the same entity as a held-out question, or shares a hop with it.
        """
        text, hops = folded(question.question), _hops(question)
        if text in self._questions or text in self._hops or hops & self._questions:
            return "text"
        return "entity" if hops & self._hops or _roots(question) & self._roots else None

    def leak_in_lines(self, lines: Iterable[str]) -> Leak | None:
        """Return how the lines of a training example leak a held-out question, or None.

        text: a line is a held-out question. entity: a line is a hop of a held-out question, or names an entity that
        a held-out question starts from.
        """
        seen = set(map(folded, lines))
        if seen & self._questions:
            return "text"
        widths = {len(entity.split()) for entity in self._roots}
        lines_of_words = [line.split() for line in seen]
        spans = (
            " ".join(words[i : i + width])
            for words in lines_of_words
            for width in widths
            for i in range(len(words) - width + 1)
        )
        return "entity" if seen & self._hops or any(span in self._roots for span in spans) else None


def folded(text: str) -> str:
    """Normalize a question without what readers do not see.

    Forms of quotation marks and dashes, ways of writing an accent, full width, HTML entities, case, and characters
    that are not shown make no difference.
    """
    while (text := html.unescape(before := text)) != before:  # "&amp;quot;"
        pass
    text = _DASHES.sub(" ", _QUOTES.sub("", _INVISIBLE.sub("", text)))
    return normalize("".join(c for c in unicodedata.normalize("NFKC", text).casefold() if not _is_punctuation(c)))


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character).startswith("P")


def keep_out(held_out: Iterable[Path], level: Leak, work: Work) -> Work:
    """Return ``work`` for all questions but those that leak a question of the files, which it rejects.

    ``level`` is what counts as a leak; "entity" includes "text". Raises UserError if a file cannot be read.
    """
    kept = HeldOutQuestions(
        question for path in held_out for question in load_questions(path, unanswerable="abstain")
    )

    async def checked(question: Question) -> Outcome:
        leak = kept.leak(question)
        if leak == "text" or (leak and level == "entity"):
            return Outcome([], {}, [Rejected(id=question.id, reason=f"held out ({leak})", text=question.question)])
        made = await work(question)
        return Outcome(made.records, made.counts | ({"shares an entity": 1} if leak else {}), made.rejected)

    return checked


def _hops(question: Question) -> set[str]:
    return {folded(step.subquery) for step in question.decomposition}


def _roots(question: Question) -> set[str]:
    """Return the entities that the question itself names: entities of hops that are not an earlier hop's answer."""
    roots: set[str] = set()
    answers: set[str] = set()
    for step in question.decomposition:
        if (entity := folded(step.entity)) and entity not in answers:
            roots.add(entity)
        answers.add(folded(step.short))
    if subject := question.metadata.get("subj"):  # PopQA's name for the question's entity
        roots.add(folded(str(subject)))
    return roots
