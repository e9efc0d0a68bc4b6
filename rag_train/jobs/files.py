"""Files that are written whole or not at all, locks, JSON Lines records, and hashes of files."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import IO, Any, Literal, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from rag_train.errors import UserError, problem_in

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


@contextmanager
def new_file(path: Path, mode: Literal["w", "wb"] = "w", writer: str = "", empty: bool = True) -> Iterator[IO[Any]]:
    """Open the next contents of ``path``, which take its place at the end, when they are on the disk.

    Its directory is created if necessary. Readers see either the old contents or the new contents; after an error
    or a kill, the old ones stay. If several processes write the file, the last one wins.

    Args:
        writer: name of this process among those; if it is killed and starts again, it writes over what it left.
        empty: whether the file is kept if nothing is written into it; if not, there is no file at ``path`` then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{writer or uuid4().hex[:8]}.tmp")
    try:
        with placed(path), unfinished.open(mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if empty or unfinished.stat().st_size:
            unfinished.replace(path)
        else:
            path.unlink(missing_ok=True)
    finally:
        unfinished.unlink(missing_ok=True)  # half a file would fill the disk that is full already


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically (see `new_file`)."""
    with new_file(path) as file:
        file.write(text)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to ``path`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_records(path: Path, records: Iterable[BaseModel]) -> None:
    """Write ``records`` to ``path`` as JSON Lines, atomically, one record at a time."""
    with new_file(path) as file:
        file.writelines(f"{record.model_dump_json()}\n" for record in records)


@contextmanager
def new_directory(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yield an empty directory that becomes ``path`` at the end: half of it is never there.

    Raises OSError if ``path`` is a directory with files, unless they are to be replaced.
    """
    unfinished = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        if replace:
            shutil.rmtree(path, ignore_errors=True)
        unfinished.rename(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def locked(path: Path, busy: str = "", waits: Callable[[], None] = lambda: None) -> Iterator[FileIO]:
    """Open ``path`` for appending, locked against other processes until the end, or a kill. It has no buffer.

    If another process holds the lock, this one calls ``waits`` and waits for it, or raises UserError with the text
    ``busy`` if that is given. On a file system without locks, nobody waits.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("ab+", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if busy:
                    raise UserError(busy) from None
                waits()
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:  # a file system without locks
                pass
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield file
                return
            # Its last holder has deleted the file: the next one locks another.


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
                    raise UserError(f"{place}: not a {kind.__name__} ({problem_in(error)}); {remedy}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text; {remedy}") from error


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
