"""Corpora: readers for the common file formats, and a store of encoded passages.

Every error in a file is a UserError of one line with the file, the line number, the problem and the remedy.
"""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import ValidationError

from rag_train.errors import UserError
from rag_train.schema import Passage

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """Yield the passages of a corpus file in their order, reading the file line by line.

    ``.jsonl``: one object per line, either BEIR's with ``id`` (or ``_id``, ``docid``), ``text`` and optionally
    ``title``, or FlashRAG's with ``contents``, whose first line is the title in quotation marks.
    ``.tsv``: DPR's ``psgs_w100.tsv``, quoted as CSV, with the header ``id text title``.

    All ids are kept in memory to detect duplicates, about 100 bytes each.

    Raises:
        UserError: if a line is not UTF-8, is malformed, has no id or no text, or repeats an id; or if the file is
            missing, empty, or has an unknown extension.
    """
    path = Path(path)
    match path.suffix.lower():
        case ".jsonl":
            rows = read_json_lines(path)
        case ".tsv":
            rows = _read_tsv(path)
        case _:
            raise UserError(f"corpus {path}: unknown extension; give a .jsonl file, or DPR's .tsv")
    first_seen: dict[str, int] = {}
    for line, row in rows:
        try:
            passage = _passage(row)
        except ValueError as error:
            raise UserError(f"{path}, line {line}: {error}; correct or remove the line") from error
        if passage.id in first_seen:
            raise UserError(
                f"{path}, line {line}: duplicate id {passage.id[:80]!r}, first on line {first_seen[passage.id]}; "
                "give every passage a unique id"
            )
        first_seen[passage.id] = line
        yield passage
    if not first_seen:
        raise UserError(f"corpus {path}: empty; give a file with one passage per line")


def count_lines(path: str | Path) -> int:
    """Return the number of lines of a file, for progress bars: about the number of passages of a corpus.

    Raises:
        UserError: if the file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of a readable file") from error


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for each line that is not blank; numbers start at 1.

    Raises:
        UserError: if the file cannot be read, or if a line is not UTF-8 or not a JSON object.
    """
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: invalid JSON ({error}); write one object per line") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: not a JSON object; write one object per line")
        yield number, row


def parse_json(text: str) -> Any:
    """Parse JSON; NaN, which pandas writes for missing values, is read as null.

    Raises:
        ValueError: if the text is not JSON or contains half of a surrogate pair, which cannot be written as UTF-8.
        RecursionError: if the value is nested too deeply.
    """
    value = json.loads(text, parse_constant=lambda _: None)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


class Bytes(Protocol):
    """Bytes that can be sliced, in memory or in a file."""

    def __getitem__(self, at: slice, /) -> bytes: ...


class PassageStore:
    """Passages by position, stored as JSON Lines and the start of each line.

    If ``lines`` is a file, only the offsets take memory, also for 21 million passages.

    Args:
        lines: the JSON Lines.
        offsets: int64, of shape (passages + 1,); the last offset is the length of ``lines``.
    """

    def __init__(self, lines: Bytes, offsets: array[int] | np.ndarray):
        self.lines = lines
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> Passage:
        line = self.lines[self.offsets[position] : self.offsets[position + 1]]
        try:
            return Passage.model_validate_json(line)
        except ValidationError as error:
            raise UserError(f"passage {position} of the index is damaged; build the index again") from error


def encode(passage: Passage) -> bytes:
    """Return the line of a passage in a `PassageStore`."""
    return passage.model_dump_json(include={"id", "title", "text"}).encode() + b"\n"


def encodable(text: str) -> str:
    """Return the text with question marks for halves of surrogate pairs, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def _lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {number}: not UTF-8; convert the file to UTF-8") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of a readable file") from error


def _read_tsv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    # strict: an unclosed quotation mark is an error; otherwise one passage would contain the rest of the file
    reader = csv.reader(_lines(path), delimiter="\t", strict=True)
    try:
        header = next(reader, ["id", "text", "title"])
        if sorted(header) != ["id", "text", "title"]:
            raise UserError(f"{path}, line 1: not DPR's header; the first line must be: id<TAB>text<TAB>title")
        for row in reader:
            if len(row) != len(header):
                raise UserError(
                    f"{path}, line {reader.line_num}: {len(row)} fields instead of 3; "
                    "separate id, text and title with tabs, and quote texts that contain tabs"
                )
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UserError(
            f"{path}, line {reader.line_num}: {error}; quote texts as in CSV, with quotation marks doubled"
        ) from error


def _passage(row: dict[str, Any]) -> Passage:
    id = next((row[key] for key in ("id", "_id", "docid") if key in row), None)
    if isinstance(id, bool) or not isinstance(id, str | int) or id == "":
        raise ValueError("no id (a string or a whole number under 'id', '_id' or 'docid')")
    title, text = row.get("title") or "", row.get("text")
    if text is None and isinstance(contents := row.get("contents"), str):
        first, newline, rest = contents.partition("\n")
        text = rest if newline else contents
        title = title or (re.sub(r'^"(.*)"$', r"\1", first.strip()) if newline else "")
    if not isinstance(title, str):
        raise ValueError("the title is not a string")
    if not isinstance(text, str):
        raise ValueError("no text (a string under 'text' or 'contents')")
    if not text.strip() and not title.strip():
        raise ValueError("the text is blank")
    return Passage(id=str(id), title=title, text=text)
