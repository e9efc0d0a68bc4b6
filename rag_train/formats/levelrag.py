"""LevelRAG's tasks: those of the high-level searcher, and those of the sparse and dense low-level searchers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rag_train.formats.tasks import Fields, Task
from rag_train.retrieval.index.lucene_query import parse, render
from rag_train.schema import Passage

YesNo = Literal["yes", "no"]

DECOMPOSE = Task("levelrag_decompose", "Queries:", list[str])
SUMMARIZE = Task("levelrag_summarize", "Answer:")
VERIFY = Task("levelrag_verify", "Sufficient:", YesNo)
SUPPLEMENT = Task("levelrag_supplement", "Queries:", list[str])
ANSWER = Task("levelrag_answer", "Answer:")

REWRITE = Task("levelrag_rewrite", "Keywords:", list[str])
SUFFICIENT = Task("levelrag_sufficient", "Sufficient:", YesNo)
EXTEND = Task("levelrag_extend", "Keyword:")
FILTER = Task("levelrag_filter", "Excluded:")
EMPHASIZE = Task("levelrag_emphasize", "Emphasized:")
PSEUDO = Task("levelrag_pseudo", "Passage:")

BOOST = 2
"""Factor by which `emphasize` multiplies the weight of a keyword."""


def question_fields(question: str, summaries: Sequence[tuple[str, str]] = ()) -> Fields:
    """Return the question and the atomic queries answered so far."""
    return [("Question", question), ("Known", [f"Q={query} A={answer}" for query, answer in summaries])]


def reading_fields(query: str, passages: Sequence[Passage]) -> Fields:
    """Return a query and the passages found for it."""
    return [("Context", passages), ("Query", query)]


def feedback_fields(query: str, keywords: str, passages: Sequence[Passage]) -> Fields:
    """Return a query, the keywords that were searched for, and the passages found."""
    return [("Context", passages), ("Query", query), ("Search", keywords)]


def keywords(words: Sequence[str]) -> str:
    """Return keywords as a query in Lucene's syntax, in which several words form a phrase."""
    return " ".join(dict.fromkeys(filter(None, map(_clause, words))))


def _clause(word: str) -> str:
    return render(parse(f'"{word.replace(chr(34), " ")}"'))


def extend(query: str, keyword: str) -> str:
    """Return ``query`` with ``keyword`` added, in quotation marks if it has several words."""
    return f"{query} {_clause(keyword)}".strip()


def exclude(query: str, keyword: str) -> str:
    """Return ``query`` with Lucene's operator "-", which excludes documents that contain ``keyword``."""
    clause = _clause(keyword)
    return f"{query} -{clause}" if clause and clause not in query.split(" ") else query


def emphasize(query: str, keyword: str) -> str:
    """Return ``query`` with a higher weight for ``keyword`` (Lucene's operator "^").

    A query that does not contain ``keyword`` stays the same.
    """
    wanted = parse(f'"{keyword.replace(chr(34), " ")}"')
    words = wanted[0].words if wanted else ()
    return render(
        [
            c.__class__(c.words, c.occur, c.field, c.boost * BOOST)
            if c.words == words and c.occur != "must_not"
            else c
            for c in parse(query)
        ]
    )
