"""Judging answers with a language model, where string comparison is too strict (DualRAG, appendix D)."""

from __future__ import annotations

import hashlib
from typing import Literal

from rag_train.formats.instructions import OURS, Instructions
from rag_train.formats.prompting import as_turn
from rag_train.formats.tasks import Task, user_turn
from rag_train.llm.base import LLM
from rag_train.llm.call_log import CallLog
from rag_train.schema import Record

JUDGE = Task("judge", "Right:", Literal["yes", "no"])


class JudgeInput(Record):
    """A predicted answer to judge, with its question and the accepted answers."""

    question: str
    answers: list[str]
    prediction: str

    @property
    def digest(self) -> str:
        """SHA-256 of the record, which identifies the verdict."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


async def verdict(log: CallLog, llm: LLM, answer: JudgeInput, instructions: Instructions = OURS) -> bool | None:
    """Ask ``llm`` whether the answer is right; return None if its reply is neither yes nor no, or cut.

    The engine calls are made through ``log``, which has to be a log of ``llm``.
    """
    fields = [
        ("Question", answer.question),
        ("Accepted answer", answer.answers),
        ("Prediction", answer.prediction),
    ]
    instruction = instructions[JUDGE.name]
    lead = "" if instruction.whole else JUDGE.lead
    prompt = as_turn(llm.tokenizer, user_turn(instructions, JUDGE.name, fields)) + lead
    reply = JUDGE.parse((await log.complete(JUDGE.name, prompt, JUDGE.sampling(instruction))).whole)
    return None if reply is None else reply == "yes"
