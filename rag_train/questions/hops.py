"""Annotated hops as questions: relations of Wikidata, MuSiQue's shorthand ``SUBJECT >> RELATION``, and subjects.

A relation without a template stays shorthand, and the factories leave such questions out (see `is_shorthand`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import dropwhile
from pathlib import Path

import yaml

from rag_train.answers import normalize

SHORTHAND = " >> "

_WORDED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
TEMPLATES: dict[str, str] = {
    **{relation: f"Who is the {relation} of {{}}?" for relation in _WORDED["who"]},
    **{relation: f"What is the {relation} of {{}}?" for relation in _WORDED["what"]},
    **_WORDED["questions"],
}
"""Questions by relation (``hops.yaml``), with ``{}`` for the subject."""

_ASKING = {"what", "who", "whom", "whose", "where", "when", "which", "why", "how", "in", "of", "on", "at", "to"}
_NAME = re.compile(r"[^\W\d_a-zà-öø-ÿ][\w.'’&-]*(?: (?:(?:of|the|de|la|von|van|and) )*[^\W_a-zà-öø-ÿ][\w.'’&-]*)*")


def question_of(subject: str, relation: str) -> str:
    """Return the question for a relation of ``subject``; shorthand if the relation has no template."""
    template = TEMPLATES.get(relation.strip())
    return template.format(subject.rstrip("?")) if template else f"{subject}{SHORTHAND}{relation}"


def is_shorthand(subquery: str) -> bool:
    """Whether a hop could not be written as a question: it is shorthand, or refers to a hop that does not exist."""
    return SHORTHAND.strip() in subquery or bool(re.search(r"#\d", subquery))


def read_hop(text: str, named: Iterable[str], answer: str) -> tuple[str, str]:
    """Return the question and the subject of a hop of MuSiQue, whose references have been filled in.

    Shorthand states its subject. The subject of a question is the first of the names ``named``, or else the
    question's own longest name. It is empty if the question has none of them, or only the hop's ``answer``.
    """
    text = re.sub(r"\s+(?=[?),]|['’]s\b)", "", " ".join(text.split()))
    subject, shorthand, relation = text.rpartition(SHORTHAND)
    if shorthand:
        return question_of(subject, relation), subject
    question = text if text.endswith("?") else f"{text}?"
    names = (plain(name) for name in (*named, *names_in(text)))
    return question, next((n for n in names if mentions(question, n) and fold(n) != fold(answer)), "")


def subject_of(subject: str, answers: Sequence[str]) -> str:
    """Return an evidence's subject as an earlier answer names it, if it only adds a remark such as "(director)"."""
    return plain(subject) if plain(subject) in answers else subject


def plain(title: str) -> str:
    """Remove the remark in brackets at the end of a title."""
    return re.sub(r"\s*\([^()]*\)$", "", title)


def mentions(text: str, value: str) -> bool:
    """Whether ``text`` contains ``value`` as whole words, apart from case, accents, punctuation and articles."""
    return bool(fold(value)) and f" {fold(value)} " in f" {fold(text)} "


@lru_cache(10_000)
def fold(text: str) -> str:
    """Normalize an answer or a name, without accents and possessive endings, and with compounds as words."""
    text = re.sub(r"[-–—/=]", " ", re.sub(r"['’]s\b", "", text, flags=re.IGNORECASE))
    return normalize("".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)))


def names_in(question: str) -> list[str]:
    """Return the capitalised names in a question, the longest first."""
    found = []
    for match in _NAME.finditer(question):
        words = match[0].split()
        found.append(" ".join(dropwhile(lambda word: word.lower() in _ASKING, words)))
    return sorted(filter(None, found), key=len, reverse=True)
