"""Reading of files that other processes are writing: JSON Lines as they grow, and JSON that may be broken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What reading JSON raises if it is broken or has another shape than expected."""


class Tail:
    """Reads the objects of a growing JSON Lines file, each once.

    A last line without its line feed is still being written; it is read when it is complete.
    """

    def __init__(self, path: Path, begin: Callable[[], None], take: Callable[[dict[str, Any]], None]):
        """``take`` gets each object; ``begin`` is called before the first, and again if the file was replaced."""
        self._path, self._begin, self._take = path, begin, take
        self._inode = self._at = self._line = 0
        self.problem = ""
        """The first line that could not be read, as a message."""

    def look(self) -> None:
        """Read what is new."""
        try:
            with self._path.open("rb") as file:
                self._read(file)
        except FileNotFoundError:  # not written yet, or just deleted
            pass
        except OSError as error:
            self.problem = f"{self._path.name}: {error.strerror}"

    def _read(self, file: IO[bytes]) -> None:
        status = os.fstat(file.fileno())
        if status.st_ino != self._inode or status.st_size < self._at:
            self._inode, self._at, self._line, self.problem = status.st_ino, 0, 0, ""
            self._begin()
        file.seek(self._at)
        for line in file:
            if not line.endswith(b"\n"):
                return
            self._at += len(line)
            self._line += 1
            try:
                self._take(json.loads(line))
            except MALFORMED:
                place = f"{self._path.name}, line {self._line}"
                self.problem = self.problem or f"{place}: not a record of rag-train; the line is left out"


def read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    """Return the JSON object in ``path``; {} if it does not exist, or is broken, which goes to ``problems``."""
    try:
        value = json.loads(path.read_bytes())
        if isinstance(value, dict):
            return value
        problems.append(f"{path.name}: not a JSON object")
    except FileNotFoundError:
        pass
    except OSError as error:
        problems.append(f"{path.name}: {error.strerror}")
    except MALFORMED:
        problems.append(f"{path.name}: not valid JSON")
    return {}
