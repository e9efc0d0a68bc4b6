"""Building blocks of module examples, shared by all factories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from rag_train.data_synth.knowable import unknown
from rag_train.formats.instructions import OURS
from rag_train.formats.tasks import Fields, Given, Task, user_turn
from rag_train.jobs.items import Outcome, Rejected
from rag_train.questions.hops import is_shorthand, mentions
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import GoldStep, Passage, Question, Segment, SFTRecord
from rag_train.strategies.base import Run


def task_record(
    task: Task, fields: Fields, answer: Any, *, id: str, source: str, instructions: Given = OURS
) -> SFTRecord:
    """Return the training record of ``task`` for ``fields``: its prompt, and ``answer`` as the trained completion.

    Raises ValueError if ``answer`` does not have the task's type.
    """
    completion = Segment(text=task.completion(answer), trained=True)
    if whole := bool(instructions and instructions[task.name].whole):
        segments = [completion.model_copy(update={"text": completion.text.lstrip()})]
    else:
        segments = [Segment(text=task.lead, trained=False), completion]
    return SFTRecord(
        id=f"{id}/{task.name}",
        prompt=user_turn(instructions, task.name, fields),
        completion="".join(segment.text for segment in segments),
        segments=segments,
        source=source,
        task=task.name,
        whole_prompt=whole,
    )


class Examples(list[SFTRecord]):
    """The training records of one question; their source is ``gold``, the annotations, by default."""

    def __init__(self, question: Question, instructions: Given):
        super().__init__()
        self._question = question
        self._instructions = instructions

    def add(self, task: Task, fields: Fields, answer: Any, place: int | str = "", source: str = "gold") -> None:
        """Append an example of ``task``; ``place`` is its position within the question, a part of the id."""
        id = f"{self._question.id}/{place}" if place != "" else self._question.id
        self.append(task_record(task, fields, answer, id=id, source=source, instructions=self._instructions))

    def write(
        self, name: str, segments: Sequence[Segment | tuple[str, bool]], place: int | str, *, chat: bool = True
    ) -> None:
        """Append an example of a format that has no `Task`.

        Each segment is a text and whether it is trained. The first segment is the prompt; with a chat model, it is
        the user's turn and the others are the reply. ``chat`` is false for formats with their own turns.
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
                chat=chat,
            )
        )


async def retrieved(
    retriever: AsyncRetriever, question: Question, k: int, *, entities: bool = False
) -> dict[str, list[Passage]]:
    """Retrieve ``k`` passages for the question and for each hop's subquery, and return them by query.

    With ``entities``, retrieve them for the hops' entities, too.
    """
    queries = [question.question, *(step.subquery for step in question.decomposition)]
    queries += [step.entity for step in question.decomposition if entities and step.entity]
    queries = list(dict.fromkeys(queries))
    return dict(zip(queries, await retriever.search_all(queries, k), strict=True))


def flaw(question: Question) -> str:
    """Return why the question's annotated hops cannot be used; empty if they can."""
    if not question.decomposition:
        return "without annotations"
    return "hop in shorthand" if any(is_shorthand(step.subquery) for step in question.decomposition) else ""


WRITE_OUT = Task("hop_question", "Question:")


async def written_out(question: Question, run: Run) -> Question:
    """Return the question with its hops in shorthand written as questions by the run's model.

    A text that is no question or does not name the hop's subject is not taken; the hop stays in shorthand.
    """
    steps: list[GoldStep] = []
    for step in question.decomposition:
        if is_shorthand(step.subquery) and step.entity:
            text = await run.ask(WRITE_OUT, [("Shorthand", step.subquery)])
            if text and text.endswith("?") and not is_shorthand(text) and mentions(text, step.entity):
                step = step.model_copy(update={"subquery": text})
        steps.append(step)
    return question.model_copy(update={"decomposition": steps})


def gold_outcome(question: Question, records: Sequence[SFTRecord], otherwise: str = "not usable") -> Outcome:
    """Return the records made from annotations that can be known from their prompts, counted by module.

    The others are rejected, and so is a question without usable annotations; ``otherwise`` is the reason if there
    are no records.
    """
    if reason := flaw(question) or ("" if records else otherwise):
        return Outcome([], {}, [Rejected(id=question.id, reason=reason, text=question.question)])
    rejected = [
        Rejected(id=record.id, reason="not known from its prompt", text=" | ".join(missing))
        for record in records
        if (missing := unknown(record))
    ]
    left_out = {item.id for item in rejected}
    kept = [record for record in records if record.id not in left_out]
    return Outcome(kept, dict(Counter(record.task for record in kept)), rejected)


def subjects_known(question: Question) -> bool:
    """Whether every annotated hop has a subject."""
    return all(step.entity for step in question.decomposition)


def says(passages: Sequence[Passage], value: str) -> bool:
    """Whether a passage contains ``value`` as whole words."""
    return any(mentions(passage.text, value) for passage in passages)


def found_or_known(passages: Sequence[Passage], step: GoldStep) -> Literal["gold", "memory", ""]:
    """Return the source of a hop's answer: the passages, or the memory of a model annotated to know it, or none."""
    return "gold" if says(passages, step.short) else "memory" if step.known else ""
