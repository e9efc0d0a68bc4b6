"""What a language model is asked about the answers of others, where string comparison does not suffice.

These are a verdict (DualRAG, appendix D), the short form of an answer (DualRAG's release), and the grade of the
subqueries of a plan (PlanRAG, equation 6).
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from typing import Any, ClassVar, Literal

from rag_train.formats.instructions import OURS, Instructions
from rag_train.formats.prompting import as_turn
from rag_train.formats.tasks import Fields, Task, user_turn
from rag_train.llm.base import LLM
from rag_train.llm.call_log import CallLog
from rag_train.schema import Record

JUDGE = Task("judge", "Right:", Literal["yes", "no"])
SHORT = Task("judge_short", "Short answer:")
GAIN = Task("judge_gain", "Gain:", Literal["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"])


class Asked(Record):
    """Something to ask a judge about: the values of its task's fields."""

    task: ClassVar[Task]

    @property
    @abstractmethod
    def fields(self) -> Fields:
        """The fields of the prompt."""

    @property
    def digest(self) -> str:
        """SHA-256 of the record, which identifies the judge's reply."""
        return hashlib.sha256(f"{self.task.name} {self.model_dump_json()}".encode()).hexdigest()


class JudgeInput(Asked):
    """A predicted answer to judge, with its question and the accepted answers."""

    task: ClassVar = JUDGE
    question: str
    answers: list[str]
    prediction: str

    @property
    def fields(self) -> Fields:
        accepted = ("Accepted answer", self.answers)
        return [("Question", self.question), accepted, ("Prediction", self.prediction)]


class LongAnswer(Asked):
    """An answer from which a short one is taken, with its question."""

    task: ClassVar = SHORT
    question: str
    answer: str

    @property
    def fields(self) -> Fields:
        return [("Question", self.question), ("Answer", self.answer)]


class Subqueries(Asked):
    """The subqueries of a plan up to a depth, to grade by what they contribute to the question."""

    task: ClassVar = GAIN
    question: str
    subqueries: list[str]

    @property
    def fields(self) -> Fields:
        return [("Question", self.question), ("Subquery", self.subqueries)]


async def ask(log: CallLog, llm: LLM, about: Asked, instructions: Instructions = OURS) -> Any:
    """Return what ``llm`` replies; None if its reply is not of the task's form, or cut.

    The engine calls are made through ``log``, which has to be a log of ``llm``.
    """
    task = about.task
    instruction = instructions[task.name]
    lead = "" if instruction.whole else task.lead
    prompt = as_turn(llm.tokenizer, user_turn(instructions, task.name, about.fields)) + lead
    return task.parse((await log.complete(task.name, prompt, task.sampling(instruction))).whole)


async def verdict(log: CallLog, llm: LLM, answer: JudgeInput, instructions: Instructions = OURS) -> bool | None:
    """Ask ``llm`` whether the answer is right; return None if its reply is neither yes nor no, or cut."""
    reply = await ask(log, llm, answer, instructions)
    return None if reply is None else reply == "yes"
