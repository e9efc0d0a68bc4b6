"""Building blocks of module examples, shared by all factories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rag_train.formats.prompting import instruction
from rag_train.formats.tasks import Fields, Task
from rag_train.resumable import Outcome, Rejected
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Passage, Question, Segment, SFTRecord


def task_record(
    task: Task, fields: Fields, answer: Any, *, id: str, source: str, instructions: bool = True
) -> SFTRecord:
    """Return the training record of ``task`` for ``fields``: its prompt, and ``answer`` as the trained completion.

    Raises ValueError if ``answer`` does not have the task's type.
    """
    head = f"{instruction(task.name)}\n\n" if instructions else ""
    segments = [
        Segment(text=task.lead, trained=False),
        Segment(text=task.completion(answer), trained=True),
    ]
    return SFTRecord(
        id=f"{id}/{task.name}",
        prompt=head + task.body(fields),
        completion="".join(segment.text for segment in segments),
        segments=segments,
        source=source,
        task=task.name,
    )


class Examples(list[SFTRecord]):
    """The training records of one question; their source is ``gold``, the annotations, by default."""

    def __init__(self, question: Question, instructions: bool):
        super().__init__()
        self._question = question
        self._instructions = instructions

    def add(self, task: Task, fields: Fields, answer: Any, place: int | str = "", source: str = "gold") -> None:
        """Append an example of ``task``; ``place`` is its position within the question, a part of the id."""
        id = f"{self._question.id}/{place}" if place != "" else self._question.id
        self.append(task_record(task, fields, answer, id=id, source=source, instructions=self._instructions))

    def write(self, name: str, segments: Sequence[Segment | tuple[str, bool]], place: int | str) -> None:
        """Append an example of a format that has no `Task`.

        Each segment is a text and whether it is trained; the first segment is the prompt.
        """
        parts = [part if isinstance(part, Segment) else Segment(text=part[0], trained=part[1]) for part in segments]
        head, *rest = parts
        self.append(
            SFTRecord(
                id=f"{self._question.id}/{place}/{name}",
                prompt=head.text,
                completion="".join(segment.text for segment in rest),
                segments=rest,
                source="gold",
                task=name,
            )
        )


async def retrieved(retriever: AsyncRetriever, question: Question, k: int) -> dict[str, list[Passage]]:
    """Retrieve ``k`` passages for the question and for each hop's subquery; return them by query."""
    queries = [question.question, *(step.subquery for step in question.decomposition)]
    return dict(zip(queries, await retriever.search_all(queries, k), strict=True))


def gold_outcome(question: Question, records: Sequence[SFTRecord]) -> Outcome:
    """Return records made from annotations, counted by module; reject the question if there are no records."""
    if not records:
        reason = "not usable" if question.decomposition else "without annotations"
        return Outcome([], {}, [Rejected(id=question.id, reason=reason, text=question.question)])
    return Outcome(records, dict(Counter(record.task for record in records)))


def says(passages: list[Passage], value: str) -> bool:
    """Whether a passage contains ``value`` literally."""
    return any(value in passage.text for passage in passages)
