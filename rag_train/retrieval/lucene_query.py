"""The part of Lucene's query language that models write (LevelRAG, section 3.3), read from any string.

Terms and ``"quoted phrases"``, which may be required (``+``), excluded (``-`` or ``NOT``), bound to a field
(``title:``, ``text:``) and boosted (``^2``). What is not that is plain text, so that no string is an error:
a stray quotation mark, bracket or operator is as if it were not there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rag_train.retrieval.corpus import encodable

FIELDS = ("title", "text")

MOST_CLAUSES = 256
"""Later clauses are left out; Lucene itself refuses more than 1,024."""

_CLAUSE = re.compile(
    r"""(?P<sign>[+-]?)
        (?:(?P<field>title|text):)?
        (?: "(?P<phrase>[^"]*)" | (?P<word>[^\s"]+?) )
        (?:\^(?P<boost>\d{1,3}(?:\.\d{1,3})?))?
        (?=[\s"]|$)""",
    re.VERBOSE,
)
# Lucene's special characters are all ASCII; of other scripts, only punctuation parts words.
_WORD = re.compile(r"[^\s\x00-/:-@\[-`{-\x9f\u2000-\u206f\u3000-\u303f]+")
_OPERATORS = ("AND", "OR", "NOT")


@dataclass(frozen=True)
class Clause:
    """One condition of a query.

    Attributes:
        words: without any special character; more than one are a phrase, to be found side by side.
        occur: whether it counts for, is required, or is excluded.
        field: ``title`` or ``text``; both if None.
        boost: its weight, 1 if not said.
    """

    words: tuple[str, ...]
    occur: Literal["should", "must", "must_not"] = "should"
    field: str | None = None
    boost: float = 1.0


def parse(query: str) -> list[Clause]:
    """The clauses of any string, at most `MOST_CLAUSES`."""
    clauses: list[Clause] = []
    excluded = False  # by a NOT before
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
        # Words held together by punctuation only ("film's") need not be side by side to count for a passage.
        parts = [(part,) for part in words] if word is not None and occur == "should" else [words]
        clauses += [Clause(part, occur, found["field"], boost) for part in parts]
        excluded = False
    return clauses[:MOST_CLAUSES]


def render(clauses: Sequence[Clause]) -> str:
    """The clauses in Lucene's syntax, for Elasticsearch, OpenSearch and whatever else reads it.

    Nothing needs escaping, since a clause's words hold no special character; `parse` gives the same clauses back.
    """
    return " ".join(map(_render, clauses))


def _render(clause: Clause) -> str:
    sign = {"should": "", "must": "+", "must_not": "-"}[clause.occur]
    field = f"{clause.field}:" if clause.field else ""
    boost = f"^{clause.boost:g}" if clause.boost != 1 else ""
    bare = len(clause.words) == 1 and clause.words[0] not in _OPERATORS
    return f"{sign}{field}{clause.words[0] if bare else chr(34) + ' '.join(clause.words) + chr(34)}{boost}"
