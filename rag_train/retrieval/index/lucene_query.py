"""Parser for the part of Lucene's query language that language models write (LevelRAG, section 3.3).

A query consists of terms and ``"quoted phrases"``, which can be required (``+``), excluded (``-`` or ``NOT``),
restricted to a field (``title:``, ``text:``) and boosted (``^2``). Everything else is plain text. No string is an
error: stray quotation marks, brackets and operators are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rag_train.retrieval.corpus import encodable

MOST_CLAUSES = 256
"""Maximum number of clauses; the rest of a query is ignored. Lucene's own limit is 1,024."""

_CLAUSE = re.compile(
    r"""(?P<sign>[+-]?)
        (?:(?P<field>title|text):)?
        (?: "(?P<phrase>[^"]*)" | (?P<word>[^\s"]+?) )
        (?:\^(?P<boost>\d{1,3}(?:\.\d{1,3})?))?
        (?=[\s"]|$)""",
    re.VERBOSE,
)
# Lucene's special characters are all ASCII; in other scripts only punctuation separates words.
_LETTERS = r"[^\s\x00-/:-@\[-`{-\x9f\u2000-\u206f\u3000-\u303f]+"
_WORD = re.compile(rf"{_LETTERS}(?:['’]{_LETTERS})*(?:\+\+|\#)?")
_OPERATORS = ("AND", "OR", "NOT")


@dataclass(frozen=True)
class Clause:
    """One condition of a query.

    Attributes:
        words: words without special characters; two or more words are a phrase and must be adjacent.
        occur: whether a match adds to the score, is required, or is excluded.
        field: ``title`` or ``text``; None for both.
        boost: weight of the condition.
    """

    words: tuple[str, ...]
    occur: Literal["should", "must", "must_not"] = "should"
    field: str | None = None
    boost: float = 1.0


def parse(query: str) -> list[Clause]:
    """Return the clauses of any string, at most `MOST_CLAUSES`."""
    clauses: list[Clause] = []
    excluded = False  # whether the previous word was NOT
    for found in _CLAUSE.finditer(encodable(query)):
        if len(clauses) >= MOST_CLAUSES:
            break
        word = found["word"]
        if word in _OPERATORS and not found["sign"]:
            excluded = word == "NOT"
            continue
        words = tuple(_WORD.findall(word if word is not None else found["phrase"]))
        if not words:
            continue
        occur = "must_not" if excluded or found["sign"] == "-" else "must" if found["sign"] == "+" else "should"
        boost = float(found["boost"] or 1)
        # Words joined by punctuation only ("well-known") are separate terms, not a phrase.
        parts = [(part,) for part in words] if word is not None and occur == "should" else [words]
        clauses += [Clause(part, occur, found["field"], boost) for part in parts]
        excluded = False
    return clauses[:MOST_CLAUSES]


def render(clauses: Sequence[Clause]) -> str:
    """Return the clauses in Lucene's syntax, for Elasticsearch and OpenSearch; `parse` returns the same clauses.

    Words need no escaping: those with special characters (C++) are in quotation marks.
    """
    return " ".join(map(_render, clauses))


def _render(clause: Clause) -> str:
    sign = {"should": "", "must": "+", "must_not": "-"}[clause.occur]
    field = f"{clause.field}:" if clause.field else ""
    boost = f"^{clause.boost:g}" if clause.boost != 1 else ""
    bare = len(clause.words) == 1 and clause.words[0] not in _OPERATORS and clause.words[0][-1] not in "+#"
    return f"{sign}{field}{clause.words[0] if bare else chr(34) + ' '.join(clause.words) + chr(34)}{boost}"
