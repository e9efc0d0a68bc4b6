"""LevelRAG's tasks: those of the high-level searcher, and those of the sparse and dense low-level searchers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from rag_train.formats.deeprag import one_line
from rag_train.formats.tasks import Fields, Released, Task
from rag_train.retrieval.index.lucene_query import Clause, parse, render
from rag_train.schema import Passage

YesNo = Literal["yes", "no"]

ENOUGH = "no additional information is required"
"""What the released prompts have the model write in place of queries."""


def _numbered(text: str) -> list[str] | None:
    """Return the queries of a list "[1] ...", with no query if the text says that nothing is missing."""
    queries = [one_line(query) for query in re.findall(r"\[\d+\] ([^\[]+)", text)]
    return queries or ([] if ENOUGH in text.lower() else None)


def _phrases(text: str) -> list[str] | None:
    """Return the keywords of a query in which quotation marks make phrases; None for a list, which is ours."""
    found = re.findall(r'"([^"]+)"|(\S+)', text)
    return None if text.lstrip().startswith("[") else [phrase or word for phrase, word in found] or None


DECOMPOSE = Task("levelrag_decompose", "Queries:", list[str], released=Released(str, _numbered))
SUMMARIZE = Task("levelrag_summarize", "Answer:")
VERIFY = Task("levelrag_verify", "Sufficient:", YesNo)
SUPPLEMENT = Task("levelrag_supplement", "Queries:", list[str], released=Released(str, _numbered))
ANSWER = Task("levelrag_answer", "Answer:")

REWRITE = Task("levelrag_rewrite", "Keywords:", list[str], released=Released(str, _phrases))
SUFFICIENT = Task("levelrag_sufficient", "Sufficient:", YesNo)
EXTEND = Task("levelrag_extend", "Keyword:")
FILTER = Task("levelrag_filter", "Excluded:")
EMPHASIZE = Task("levelrag_emphasize", "Emphasized:")
PSEUDO = Task("levelrag_pseudo", "Passage:")


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


def extend(query: str, keyword: str) -> str:
    """Return ``query`` with ``keyword`` added, in quotation marks if it has several words."""
    return f"{query} {_clause(keyword)}".strip()


def _excludes(clauses: Sequence[Clause], words: tuple[str, ...]) -> bool:
    return any(clause.occur == "must_not" and clause.words == words for clause in clauses)


def exclude(query: str, keyword: str) -> str:
    """Return ``query`` without ``keyword``, or, if the query lacks it, with Lucene's operator "-" before it.

    A keyword that the query excludes already changes nothing.
    """
    words, clauses = _words(keyword), parse(query)
    if not words or _excludes(clauses, words):
        return query
    if not any(_has(clause, words) for clause in clauses):
        return f"{query} -{_clause(keyword)}"
    left = [_without(clause, words) if _has(clause, words) else clause for clause in clauses]
    return render([clause for clause in left if clause.words])


def emphasize(query: str, keyword: str) -> str:
    """Return ``query`` with the weight of ``keyword`` raised by 1 (Lucene's operator "^").

    A keyword that the query lacks is put before the query in quotation marks; one that the query excludes changes
    nothing.
    """
    words, clauses = _words(keyword), parse(query)
    if not words or _excludes(clauses, words):
        return query
    if not any(_has(clause, words) for clause in clauses):
        return f'"{" ".join(words)}" {query}'
    return render([replace(c, boost=c.boost + 1) if _has(c, words) else c for c in clauses])


def _words(keyword: str) -> tuple[str, ...]:
    clauses = parse(f'"{keyword.replace(chr(34), " ")}"')
    return clauses[0].words if clauses else ()


def _clause(keyword: str) -> str:
    words = _words(keyword)
    return render([Clause(words)]) if words else ""


def _place(clause: Clause, words: tuple[str, ...]) -> int | None:
    """Return where ``words`` begin in the clause, in upper or lower case; None if they are not in it."""
    wanted = [word.casefold() for word in words]
    held = [word.casefold() for word in clause.words]
    return next((i for i in range(len(held)) if held[i : i + len(wanted)] == wanted), None)


def _has(clause: Clause, words: tuple[str, ...]) -> bool:
    return clause.occur != "must_not" and _place(clause, words) is not None


def _without(clause: Clause, words: tuple[str, ...]) -> Clause:
    place = _place(clause, words) or 0
    return replace(clause, words=clause.words[:place] + clause.words[place + len(words) :])
