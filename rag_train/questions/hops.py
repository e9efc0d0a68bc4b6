"""Annotated hops as questions: relations of Wikidata, MuSiQue's shorthand ``SUBJECT >> RELATION``, and subjects.

A relation without a template stays shorthand, and the factories leave such questions out (see `is_shorthand`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import dropwhile

from rag_train.answers import normalize

SHORTHAND = " >> "

_PERSONS = (
    "architect, author, chairperson, characters, child, composer, conductor, creator, director, doctoral advisor, "
    "editor, father, film editor, head of government, head of state, manager, mother, performer, presenter, "
    "producer, screenwriter, sibling, spouse"
)
"""Relations for "Who is the ... of ...?"."""
_THINGS = (
    "airline hub, architectural style, basin country, birthplace, capital, cause of death, collection, continent, "
    "country, country of citizenship, country of origin, currency, date of birth, date of death, employer, "
    "ethnic group, field of work, genre, headquarters location, heritage designation, highest point, home venue, "
    "inception, industry, instrument, language of work or name, legislative body, location, main subject, "
    "manner of death, material used, military branch, movement, narrative location, native language, notable work, "
    "occupation, official language, operating system, original language of work, original network, "
    "parent organization, parent taxon, place of birth, place of burial, place of death, platform, product, "
    "production company, publication date, publisher, record label, religion, residence, sport, stock exchange, "
    "subsidiary, terminus, voice type"
)
"""Relations for "What is the ... of ...?"."""
TEMPLATES = {
    **{relation: f"Who is the {relation} of {{}}?" for relation in _PERSONS.split(", ")},
    **{relation: f"What is the {relation} of {{}}?" for relation in _THINGS.split(", ")},
    "applies to jurisdiction": "To which jurisdiction does {} apply?",
    "award received": "Which award did {} receive?",
    "based on": "What is {} based on?",
    "capital of": "What is {} the capital of?",
    "cast member": "Who is a cast member of {}?",
    "conflict": "In which conflict was {} involved?",
    "connecting line": "Which line serves {}?",
    "crosses": "What does {} cross?",
    "designed by": "Who designed {}?",
    "developer": "Who developed {}?",
    "discoverer or inventor": "Who discovered or invented {}?",
    "distributed by": "Who distributed {}?",
    "distributor": "Who distributed {}?",
    "educated at": "Where was {} educated?",
    "filming location": "Where was {} filmed?",
    "followed by": "What followed {}?",
    "follows": "What did {} follow?",
    "founded by": "Who founded {}?",
    "founder": "Who founded {}?",
    "from fictional universe": "From which fictional universe is {}?",
    "has part": "What is a part of {}?",
    "influenced by": "Who influenced {}?",
    "instance of": "What is {} an instance of?",
    "league": "In which league is {}?",
    "licensed to broadcast to": "To which place is {} licensed to broadcast?",
    "located in or next to body of water": "In or next to which body of water is {}?",
    "located in the administrative territorial entity": "In which administrative territorial entity is {} located?",
    "located on terrain feature": "On which terrain feature is {} located?",
    "location of discovery": "Where was {} discovered?",
    "location of formation": "Where was {} formed?",
    "lyrics by": "Who wrote the lyrics of {}?",
    "manufacturer": "Who manufactured {}?",
    "member of": "What is {} a member of?",
    "member of political party": "Of which political party is {} a member?",
    "member of sports team": "Of which sports team is {} a member?",
    "mouth of the watercourse": "Into which body of water does {} flow?",
    "named after": "What is {} named after?",
    "nominated for": "What was {} nominated for?",
    "occupant": "Who occupies {}?",
    "operator": "Who operates {}?",
    "owned by": "Who owns {}?",
    "part of": "What is {} part of?",
    "part of the series": "Of which series is {} a part?",
    "participant": "Who took part in {}?",
    "participant of": "What did {} take part in?",
    "participating team": "Which team took part in {}?",
    "political party": "What is the political party of {}?",
    "position held": "Which position did {} hold?",
    "position played on team / speciality": "Which position does {} play?",
    "replaced by": "What replaced {}?",
    "replaces": "What did {} replace?",
    "shares border with": "What shares a border with {}?",
    "student of": "Whose student was {}?",
    "subclass of": "What is {} a subclass of?",
    "twinned administrative body": "With which place is {} twinned?",
    "winner": "Who won {}?",
}
"""Questions by relation, with ``{}`` for the subject. Each names the relation as Wikidata does and adds nothing."""

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
