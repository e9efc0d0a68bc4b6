"""DualRAG's modules (section 3.1), Reasoner, Entity Identifier and Knowledge Summarizer, and the knowledge outline.

The docstrings of the BaseModel classes are part of the JSON schemas that engines receive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from rag_train.formats.tasks import Fields, Task
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


REASON = Task("dualrag_reason", "Reasoner:", Reasoning)
IDENTIFY = Task("dualrag_identify", "Entities:", list[Entity], max_tokens=1024)
SUMMARIZE = Task("dualrag_summarize", "Summary:")
ANSWER = Task("dualrag_answer", "Answer:")


def state_fields(question: str, knowledge: Fields, thoughts: Sequence[str]) -> Fields:
    """Return the fields of `REASON`, `IDENTIFY` and `ANSWER`: question, knowledge and thoughts so far."""
    return [("Question", question), *(knowledge or [("Knowledge", NOTHING)]), ("Thought", list(thoughts))]


def outline_lines(outline: Mapping[str, Sequence[str]]) -> Fields:
    """Return the progressive knowledge outline (equation 10), one line per entity; no field if it is empty.

    Without the Entity Identifier, the only entity has no name.
    """
    lines = [": ".join(filter(None, (entity, " ".join(parts)))) for entity, parts in outline.items() if parts]
    return [("Knowledge", lines)] if lines else []


def summary_fields(question: str, thought: str, entity: str, passages: Sequence[Passage]) -> Fields:
    """Return the fields of `SUMMARIZE`."""
    named = [("Entity", entity)] if entity else []
    return [("Question", question), ("Thought", thought), ("Context", passages), *named]
