"""Passages about the entities of the atlas."""

from __future__ import annotations

from rag_train.schema import Passage
from rag_train.worlds.atlas.facts import Atlas, Entity, share
from rag_train.worlds.atlas.wordings import RELATIONS

MENTIONED = 0.9
"""Share of the facts that a passage states: retrieval has limits, too."""
INTRODUCTIONS = {
    "country": ("{x} is a country.", "{x} is a country of the world.", "{x} is a sovereign state or territory."),
    "region": ("{x} is a {type}.", "{x} is an administrative {type}.", "{x} is a first-level {type}."),
    "element": ("{x} is a chemical element.", "{x} is one of the chemical elements.", "{x} is an element."),
}


def is_mentioned(fact: tuple[str, str]) -> bool:
    """Whether a passage states the fact."""
    return share(f"mention {fact}") < MENTIONED


def corpus(atlas: Atlas) -> list[Passage]:
    """One passage per entity, and one more per country and city that names its real neighbours as distractors."""
    passages = [_passage(atlas, entity) for entity in atlas.entities.values()]
    notes = [_note(atlas, entity) for entity in atlas.entities.values() if entity.neighbours]
    return passages + notes


def _passage(atlas: Atlas, entity: Entity) -> Passage:
    sentences = []
    if entity.kind in INTRODUCTIONS:
        kind = atlas.facts.get((entity.id, "type"))
        introduction = _pick(INTRODUCTIONS[entity.kind], f"introduction {entity.id}")
        sentences.append(introduction.format(x=entity.phrase, type=kind.text if kind else ""))
    for kind, relation in RELATIONS:
        fact = (entity.id, relation)
        if kind == entity.kind and fact in atlas.facts and is_mentioned(fact):
            wording = _pick(RELATIONS[kind, relation].statements, f"statement {fact}")
            sentences.append(wording.format(x=entity.phrase, v=_object(atlas, fact)))
    text = " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
    return Passage(id=entity.id, title=entity.name, text=text or f"{entity.name}.")


def _note(atlas: Atlas, entity: Entity) -> Passage:
    """A passage that mentions the entity together with its neighbours and their facts."""
    parts = []
    for id in entity.neighbours:
        other = atlas.entities[id]
        relation = "capital" if other.kind == "country" else "population"
        if value := atlas.facts.get((id, relation)):
            detail = f"whose capital is {value.text}" if relation == "capital" else f"with {value.text} inhabitants"
            parts.append(f"{other.phrase}, {detail}")
    verb = "shares borders with" if entity.kind == "country" else "is near"
    text = f"{entity.phrase} {verb} {'; and '.join(parts) or 'no other place'}."
    return Passage(id=f"{entity.id}-neighbours", title=f"Around {entity.name}", text=text[0].upper() + text[1:])


def _object(atlas: Atlas, fact: tuple[str, str]) -> str:
    value = atlas.facts[fact]
    return atlas.entities[value.entity].phrase if value.entity else value.text


def _pick(wordings: tuple[str, ...], key: str) -> str:
    return wordings[int(share(key) * len(wordings))]
