"""Files of records of any type, one JSON object a line, validated line by line; and released question files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from rag_train.errors import UserError, problem_in
from rag_train.jobs.items import Rejected
from rag_train.questions.formats import FORMATS
from rag_train.questions.load import load_questions
from rag_train.schema import PreferencePair, Question, Record, SFTRecord, Trajectory

RECORD_TYPES: tuple[type[Record], ...] = (SFTRecord, PreferencePair, Trajectory, Question, Rejected)
"""Types that a file may hold, in the order in which they are tried."""


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
