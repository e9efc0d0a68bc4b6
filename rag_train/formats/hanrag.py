"""HANRAG's modules (section 4.1, appendix G): the five tasks of the Revelator, and those of the generator.

The paper's prompts all end in "Answer:". Here, each task has its own marker, so that a model that was trained on
all tasks can distinguish them without instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from rag_train.formats.tasks import Fields, Task
from rag_train.schema import Passage

Route = Literal["straightforward question", "single-step question", "compound question", "complex question"]
NOTHING = "nothing"


class Decomposition(BaseModel):
    thought: str = ""
    decomposition: list[str]


ROUTE = Task("hanrag_route", "Type:", Route)
DECOMPOSE = Task("hanrag_decompose", "Decomposition:", Decomposition)
REFINE = Task("hanrag_refine", "Output:")
RELEVANT = Task("hanrag_relevant", "Relevant:", Literal["true", "false"])
ENDING = Task("hanrag_ending", "Sufficient:", Literal["true", "false"])
ANSWER = Task("hanrag_answer", "Answer:")
COMBINE = Task("hanrag_combine", "Answer:")


def query_fields(question: str) -> Fields:
    """Return the fields of `ROUTE` and `DECOMPOSE`."""
    return [("Query", question)]


def thought_fields(question: str, solved: Sequence[tuple[str, str]]) -> Fields:
    """Return the fields of `REFINE`, `ENDING` and `COMBINE` (equation 5).

    ``solved`` has the sub-questions so far with their answers.
    """
    if not solved:
        return [("Question", question), ("Thought", NOTHING)]
    lines: list[tuple[str, str]] = [("Question", question)]
    for i, (query, answer) in enumerate(solved, 1):
        lines += [(f"seed query-{i}", query), (f"answer-{i}", answer)]
    return lines


def relevance_fields(question: str, passage: Passage) -> Fields:
    """Return the fields of `RELEVANT`."""
    return [("Question", question), ("Doc", [passage])]


def answer_fields(question: str, passages: Sequence[Passage]) -> Fields:
    """Return the fields of `ANSWER`, with the passages first as in all reader prompts. The paper puts them last."""
    return [("Doc", passages), ("Question", question)]
