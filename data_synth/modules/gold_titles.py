"""DualRAG's teacher data compared with the titles of the gold passages, as in the authors' code.

An entity stands for the gold title that it matches best. Entities that match none are removed from the Entity
Identifier's examples, and of several with the same title all but the best; the summary of an entity that matches
none becomes "nothing".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rag_train.answers import normalize
from rag_train.formats import dualrag
from rag_train.formats.dualrag import Entity
from rag_train.formats.tasks import Fields
from rag_train.questions.hops import mentions, plain
from rag_train.schema import Passage, Question

if TYPE_CHECKING:
    from rag_train.retrieval.rerank import Reranker  # needs an optional dependency


class Match(NamedTuple):
    """The gold title that an entity matches best, and the score."""

    title: str
    score: float


def match_titles(
    entities: Sequence[str], titles: Sequence[str], reranker: Reranker | None
) -> dict[str, Match | None]:
    """Return each entity's match, None if no title has a raw score above 0. There must be a title.

    Without a reranker, a title matches if it is the entity's name, apart from what it has in brackets.
    """
    pairs = [(entity, title) for entity in entities for title in titles]
    least = 0.0
    if reranker is None:
        names = {title: (normalize(title), normalize(plain(title))) for title in titles}
        scores = [float(normalize(entity) in names[title]) for entity, title in pairs]
    else:
        from rag_train.retrieval.rerank import zero_of

        scores, least = reranker.scores(pairs), zero_of(reranker)
    score = dict(zip(pairs, scores, strict=True))
    matches: dict[str, Match | None] = {}
    for entity in entities:
        best = max(titles, key=lambda title: score[entity, title])
        found = Match(best, score[entity, best])
        matches[entity] = found if found.score > least else None
    return matches


def names_of(matches: Mapping[str, Match | None]) -> dict[str, str]:
    """Return the name of each entity: that of the entity that matches its title best; empty if it matches none."""
    best: dict[str, str] = {}
    for entity, match in sorted(matches.items(), key=lambda item: item[1].score if item[1] else 0.0, reverse=True):
        if match:
            best.setdefault(match.title, entity)
    return {entity: best[match.title] if match else "" for entity, match in matches.items()}


def identified(entities: Sequence[Entity], names: Mapping[str, str]) -> list[Entity]:
    """Return the entities that keep their names; those that match nothing, or less well than another, go."""
    return [entity for entity in entities if names[entity.entity] == entity.entity]


def known_by_name(fields: Fields, names: Mapping[str, str]) -> Fields:
    """Return the Entity Identifier's fields with the outline's entities under their new names."""
    given = dict(fields)
    outline: dict[str, list[str]] = {}
    for line in given["Knowledge"] if not isinstance(given["Knowledge"], str) else ():
        entity = max((name for name in names if str(line).startswith(f"{name}: ")), key=len, default="")
        name, said = names.get(entity, ""), str(line).removeprefix(f"{entity}: ")
        if name and said not in outline.setdefault(name, []):
            outline[name].append(said)
    question, thoughts = str(given["Question"]), [str(thought) for thought in given["Thought"]]
    return dualrag.identify_fields(question, dualrag.outline_lines(outline), list(outline), thoughts)


def summarized(summary: str, passages: Sequence[Passage], question: Question, match: Match | None) -> str:
    """Return the summary of the entity with the given match.

    It is "nothing" without a match. A summary "nothing" of passages that include the gold one becomes the first
    supporting sentence of that passage, or the whole passage if the dataset marks no sentences (MuSiQue).
    """
    if match is None:
        return dualrag.NOTHING
    if normalize(summary) != dualrag.NOTHING or match.title not in {passage.title for passage in passages}:
        return summary
    gold = next(passage for passage in question.gold_passages if passage.title == match.title)
    sentences = [text for text in question.metadata.get("supporting", ()) if mentions(gold.text, text)]
    return sentences[0] if sentences else gold.text
