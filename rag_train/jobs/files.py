"""Atomic writing of files, reading of JSON Lines records, and file hashes."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from rag_train.errors import UserError

T = TypeVar("T", bound=BaseModel)
CACHE_VARIABLE = "RAG_TRAIN_CACHE"


def cache_directory() -> Path:
    """Return the directory for what can be made again: ``~/.cache/rag-train``, or that of RAG_TRAIN_CACHE."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache/rag-train")


@contextmanager
def placed(path: Path | str) -> Iterator[None]:
    """Give errors of the file system the path: those of writing to an open file, such as a full disk, have none."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def to_json(value: Any) -> str:
    """Return ``value`` as JSON in one line; numbers that JSON does not have (NaN and infinities) become null."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False)


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` and create its directory if necessary.

    The write is atomic: readers see either the old contents or the new contents. If several processes write the
    file at the same time, the last one wins.
    """
    _write(path, [text])


def write_records(path: Path, records: Iterable[BaseModel]) -> None:
    """Write ``records`` to ``path`` as JSON Lines, atomically, one record at a time."""
    _write(path, (f"{record.model_dump_json()}\n" for record in records))


def _write(path: Path, texts: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid4().hex[:8]}.tmp")
    try:
        with placed(path), temporary.open("w", encoding="utf-8") as file:
            file.writelines(texts)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # half a file would fill the disk that is full already
        raise


def read_records(path: Path, kind: type[T], remedy: str = "run again the command that wrote it") -> list[T]:
    """Read a JSON Lines file with one record of type ``kind`` per line (see `placed_records`)."""
    return [record for _, record in placed_records(path, kind, remedy)]


def placed_records(path: Path, kind: type[T], remedy: str) -> Iterator[tuple[str, T]]:
    """Yield each record of a JSON Lines file with its place, "file, line n".

    Raises UserError, whose message ends with ``remedy``, if the file cannot be read or a line is not a ``kind``.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                place = f"{path}, line {number}"
                try:
                    yield place, kind.model_validate_json(line)
                except ValidationError as error:
                    problem = error.errors()[0]
                    where = ".".join(str(part) for part in problem["loc"])
                    told = f"{where}: {problem['msg']}" if where else problem["msg"]
                    raise UserError(f"{place}: not a {kind.__name__} ({told}); {remedy}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text; {remedy}") from error


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
