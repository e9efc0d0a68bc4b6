"""Partial files: the items that are completed while an output is not, a line each.

Each process that works on an output has its own partial file, whose first line says by which recipe it was started.
They are read in a stream: memory is used for a line and for the place of each completed item.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from json import loads
from pathlib import Path
from typing import IO, Any

from rag_train.errors import UserError
from rag_train.jobs.files import locked, placed, to_json

PARTIAL = re.compile(r"(.+?)(\.\d+-of-\d+)?\.partial")
"""Name of a partial file; its first group is the name of the output."""
SIDECAR = ".meta.json"
REJECTED = ".rejected.jsonl"
_ITEM = re.compile(rb'\{"(item|open)": (\d+),')
"""Begin of the line of an item that is completed, or open."""


def partial_files(output: Path) -> list[Path]:
    """Return the partial files of all processes."""
    matches = ((path, PARTIAL.fullmatch(path.name)) for path in output.parent.iterdir())
    return sorted(path for path, match in matches if match and match[1] == output.name)


def sidecar(output: Path) -> Path:
    """Return the path of the file with the settings and the totals of ``output``."""
    return Path(f"{output}{SIDECAR}")


def rejected_file(output: Path) -> Path:
    """Return the path of the file with the rejected records of ``output``."""
    return Path(f"{output}{REJECTED}")


@contextmanager
def claimed(partial: Path, key: str, items: int) -> Iterator[FileIO]:
    """Open and lock a partial file for `append`. What a kill left of its last line is removed.

    Raises UserError if another process holds the lock.
    """
    busy = f"{partial}: another process is writing this file; wait for it or stop it"
    with locked(partial, busy) as file:
        with partial.open("rb") as lines:
            file.truncate(sum(len(line) for line in lines if line.endswith(b"\n")))
        if not partial.stat().st_size:
            append(file, {"fingerprint": key, "items": items})
        yield file


def append(file: FileIO, value: dict[str, Any]) -> None:
    """Write ``value`` as a line of JSON. A kill loses no other line."""
    rest = memoryview(f"{to_json(value)}\n".encode())
    with placed(file.name):
        while rest:
            rest = rest[file.write(rest) :]


class Completed:
    """The completed items in partial files.

    Raises UserError if a file was started with another ``key``.
    """

    def __init__(self, files: Sequence[IO[bytes]], key: str, items: int):
        self._files = files
        self._file = array("i", [-1]) * items  # by item: the number of its file, and the offset of its line there
        self._at = array("q", [0]) * items
        self._tried: set[int] = set()
        for number, file in enumerate(files):
            self._scan(number, file, key)

    def __contains__(self, item: int) -> bool:
        return self._file[item] >= 0

    @property
    def count(self) -> int:
        return len(self._file) - self._file.count(-1)

    @property
    def open(self) -> int:
        """Number of items that were tried and are not completed."""
        return sum(item not in self for item in self._tried)

    def lines(self, items: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the lines of the completed items among ``items``."""
        for item in items:
            if item in self:
                file = self._files[self._file[item]]
                file.seek(self._at[item])
                yield loads(file.readline())

    def _scan(self, number: int, file: IO[bytes], key: str) -> None:
        """Note the items of a file. A last line without its line feed is ignored."""
        at = 0
        for line in file:
            if not line.endswith(b"\n"):
                return
            if at == 0 and not line.startswith(f'{{"fingerprint": "{key}"'.encode()):
                raise UserError(
                    f"{file.name}: was started with a different recipe; delete it or choose another output"
                )
            if begin := _ITEM.match(line):
                item = int(begin[2])
                if begin[1] == b"open":
                    self._tried.add(item)
                else:
                    self._file[item], self._at[item] = number, at
            at += len(line)


@contextmanager
def completed(output: Path, key: str, items: int) -> Iterator[Completed]:
    """Open the partial files of all processes, which another one may delete in the meantime."""
    with ExitStack() as stack:
        files = []
        for part in partial_files(output):
            with suppress(FileNotFoundError):  # another process has just written the output
                files.append(stack.enter_context(part.open("rb")))
        yield Completed(files, key, items)
