"""Records of any type: what is said of each, and files of them; also released question files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from rag_train.answers import normalize
from rag_train.data_synth.knowable import without_instruction
from rag_train.errors import UserError, problem_in
from rag_train.formats.deeprag import decision_snippet
from rag_train.jobs.items import Rejected
from rag_train.questions.formats import FORMATS
from rag_train.questions.load import load_questions
from rag_train.schema import Decision, PreferencePair, Question, Record, SFTRecord, Trajectory

RECORD_TYPES: tuple[type[Record], ...] = (SFTRecord, PreferencePair, Trajectory, Question, Rejected)
"""Types that a file may hold, in the order in which they are tried."""


class Described(NamedTuple):
    """What checks and pages say of a record.

    Attributes:
        task: label to count and to filter by.
        outcome: another label: the source of a training example, the preferred decision of a pair, how a trajectory
            ended, a question's number of hops, or the reason of a rejection.
        title: the question of a record or of its prompt; else the prompt's first labelled line, or the id.
        question_id: id of the question that the record was made from.
        key: what is unique to the record.
        asked, answer: records that ask the same must have the same answer.
        texts: what it asks and teaches, without instruction and passages.
    """

    task: str
    outcome: str
    title: str
    question_id: str
    key: Any
    asked: Any
    answer: Any
    texts: list[str]


def described(record: Record) -> Described:
    """Return what is said of a record of one of the `RECORD_TYPES`."""
    match record:
        case SFTRecord():
            prompt, trained = without_instruction(record), [s.text for s in record.segments if s.trained]
            asked = record.task, record.prompt
            labels = record.task or "trajectory", record.source, _title(prompt) or record.id
            return Described(*labels, _origin(record.id), record.id, asked, record.completion, [prompt, *trained])
        case PreferencePair():
            prompt, sides = without_instruction(record), (record.chosen, record.rejected)
            snippets = {decision_snippet(decision): f"{decision} preferred" for decision in Decision}
            labels = "pair", snippets.get(record.chosen, "trajectory preferred"), _title(prompt) or record.id
            return Described(*labels, _origin(record.id), record.id, record.prompt, sides, [prompt])
        case Trajectory():
            ended = "failed" if record.error else "no answer" if record.answer is None else "answered"
            labels, id = (record.strategy, ended, record.question), record.question_id
            key, asked = (record.strategy, id), (record.strategy, record.question)
            texts = [record.question, *(step.subquery for step in record.steps)]
            return Described(*labels, id, key, asked, record.answer, texts)
        case Question():
            hops = f"{record.hops} hops" if record.hops else "hops unknown"
            labels, asked = (record.type or "question", hops, record.question), normalize(record.question)
            return Described(*labels, record.id, record.id, asked, record.answers, [])
        case Rejected():
            labels, key = (
                ("rejected", record.reason, record.text or record.id),
                (record.id, record.reason, record.text),
            )
            return Described(*labels, _origin(record.id), key, record, None, [])
    raise TypeError(type(record))


def _origin(id: str) -> str:
    """Return the id of a question, with which the ids of what was made from it begin."""
    return id.partition("/")[0]


def _title(prompt: str) -> str:
    """Return the question in a prompt, or else its first labelled line."""
    lines = [line.partition(": ") for line in prompt.split("\n")]
    return [*(text for label, _, text in lines if label in ("Question", "Query")), lines[0][2]][0]


class InvalidLine(NamedTuple):
    """A line (counted from 1) that is not a record of the file's type, and why."""

    line: int
    reason: str


@dataclass(frozen=True)
class RecordFile:
    """The valid records of a file by line number, and its invalid lines."""

    path: Path
    record_type: type[Record]
    records: dict[int, Record]
    invalid: list[InvalidLine]


def read_record_file(path: Path) -> RecordFile:
    """Read a file of records; the fields of its first JSON object decide the type of all.

    A question file as released (`rag_train.questions.load`) is read as questions, numbered from 1.

    Raises UserError if the file cannot be read, or if it holds neither records nor questions.
    """
    try:
        # Bytes are split at line breaks only; str.splitlines would also split at U+2028 inside a JSON string.
        lines = [(number, line) for number, line in enumerate(path.read_bytes().splitlines(), 1) if line.strip()]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give the path of a file of records") from error
    record_type = _record_type(lines)
    if record_type is None:
        return RecordFile(path, Question, dict(enumerate(_released(path), 1)), [])
    records, invalid = {}, []
    for number, line in lines:
        try:
            if record_type is Question:
                records[number] = FORMATS["plain"].read(json.loads(line))
            else:
                records[number] = record_type.model_validate_json(line)
        except ValidationError as error:
            invalid.append(InvalidLine(number, problem_in(error)))
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            invalid.append(InvalidLine(number, str(error)))
    return RecordFile(path, record_type, records, invalid)


def _record_type(lines: list[tuple[int, bytes]]) -> type[Record] | None:
    """Return the first record type that the first JSON object fits, or None."""
    for _, line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            return next((kind for kind in RECORD_TYPES if _required(kind) <= row.keys()), None)
    return None


def _required(record_type: type[Record]) -> set[str]:
    return {name for name, field in record_type.model_fields.items() if field.is_required()}


def _released(path: Path) -> list[Question]:
    try:
        return load_questions(path, unanswerable="abstain")
    except UserError as error:
        names = ", ".join(record_type.__name__ for record_type in RECORD_TYPES)
        raise UserError(
            f"{path}: no records of one of the types {names}, and as a question file: {error}"
        ) from error
