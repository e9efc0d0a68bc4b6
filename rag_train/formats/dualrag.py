"""DualRAG's modules (section 3.1), Reasoner, Entity Identifier and Knowledge Summarizer, and the knowledge outline.

The docstrings of the BaseModel classes are part of the JSON schemas that engines receive.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from rag_train.answers import normalize
from rag_train.formats.deeprag import one_line
from rag_train.formats.tasks import Fields, Released, Task
from rag_train.schema import Passage

NOTHING = "nothing"


class Reasoning(BaseModel):
    """Equation 3: the next thought, and the retrieval trigger."""

    thought: str
    retrieve: bool


class Entity(BaseModel):
    """Equation 5: a key entity with its queries."""

    entity: str
    queries: list[str]


class ReleasedReasoning(BaseModel):
    thought: str
    need_retrieve: bool


class ReleasedEntity(BaseModel):
    entity: str
    keywords: list[str]


class ReleasedEntities(BaseModel):
    entities: list[ReleasedEntity]


def _reasoning(written: ReleasedReasoning) -> Reasoning:
    return Reasoning(thought=written.thought, retrieve=written.need_retrieve)


def _entities(written: ReleasedEntities) -> list[Entity]:
    return [Entity(entity=each.entity, queries=each.keywords) for each in written.entities]


def _summary(text: str) -> str | None:
    """Return the summary in one line; "None" says that the passages do not help."""
    return NOTHING if normalize(text) == "none" else one_line(text) or None


REASON = Task("dualrag_reason", "Reasoner:", Reasoning, released=Released(ReleasedReasoning, _reasoning))
IDENTIFY = Task(
    "dualrag_identify", "Entities:", list[Entity], max_tokens=1024, released=Released(ReleasedEntities, _entities)
)
SUMMARIZE = Task("dualrag_summarize", "Summary:", released=Released(str, _summary))
ANSWER = Task("dualrag_answer", "Answer:", released=Released(str, lambda text: one_line(text) or None))


class Outline:
    """The progressive knowledge outline (equation 10): the summaries of each entity, and the passages it has read.

    An entity about which nothing was found is not in the outline, so that its passages can be read again.
    """

    def __init__(self) -> None:
        self.parts: dict[str, list[str]] = {}
        self._read: dict[str, set[str]] = {}

    def new(self, entity: str, passages: Sequence[Passage]) -> list[Passage]:
        """Return the passages that were not read for the entity yet."""
        return [passage for passage in passages if passage.id not in self._read.get(entity, ())]

    def add(self, entity: str, passages: Sequence[Passage], part: str) -> None:
        """Add a summary of passages to the entity's, unless it says nothing or is there already."""
        if part and normalize(part) != NOTHING:
            known = self.parts.setdefault(entity, [])
            known += [part] if part not in known else []
        if entity in self.parts:
            self._read.setdefault(entity, set()).update(passage.id for passage in passages)


def state_fields(question: str, knowledge: Fields, thoughts: Sequence[str]) -> Fields:
    """Return the fields of `REASON` and `ANSWER`: question, knowledge and thoughts so far."""
    return [("Question", question), *(knowledge or [("Knowledge", NOTHING)]), ("Thought", list(thoughts))]


def identify_fields(question: str, knowledge: Fields, known: Sequence[str], thoughts: Sequence[str]) -> Fields:
    """Return the fields of `IDENTIFY`: those of the state, and the list of the outline's entities if it has any."""
    listed = [("Known entities", json.dumps(list(known), ensure_ascii=False))] if known else []
    return [*state_fields(question, knowledge, []), *listed, ("Thought", list(thoughts))]


def outline_lines(outline: Mapping[str, Sequence[str]]) -> Fields:
    """Return the outline's summaries by entity, one line for each entity; no field if it is empty.

    A passage without a title is about an entity without a name.
    """
    lines = [": ".join(filter(None, (entity, " ".join(parts)))) for entity, parts in outline.items() if parts]
    return [("Knowledge", lines)] if lines else []


def summary_fields(
    question: str, thoughts: Sequence[str], entity: str, queries: Sequence[str], passages: Sequence[Passage]
) -> Fields:
    """Return the fields of `SUMMARIZE`: all thoughts so far, the entity's queries, and its new passages."""
    named = [("Entity", entity)] if entity else []
    asked = [("Thought", list(thoughts)), ("Query", list(queries))]
    return [("Question", question), *asked, ("Context", passages), *named]
