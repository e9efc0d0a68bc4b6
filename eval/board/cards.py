"""What the board shows of any run, and how a run on disk is followed."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rag_train.errors import UserError
from rag_train.eval.board.commands import Command, Settings
from rag_train.eval.board.files import MALFORMED


class Link(NamedTuple):
    """A page about a run."""

    text: str
    address: str


class Shown(NamedTuple):
    """A record or a rejection: its id, the reason of a rejection, and its text."""

    id: str
    reason: str
    text: str


@dataclass(frozen=True)
class Progress:
    """How far a synthesis, or a part of an evaluation, has come; ``of`` is None if that is not known."""

    name: str
    done: int
    of: int | None
    open: int
    rejected: dict[str, int]
    records: int
    read: int
    written: int


@dataclass(frozen=True)
class Card:
    """What the page shows of a run, except for its curves."""

    kind: str
    name: str
    finished: bool = False
    line: str = ""
    """The most important facts in a few words."""
    share: float | None = None
    """How much of the run is done, from 0 to 1."""
    facts: dict[str, str] = field(default_factory=dict)
    progress: list[Progress] = field(default_factory=list)
    records: list[Shown] = field(default_factory=list)
    rejections: list[Shown] = field(default_factory=list)
    best: str = ""
    """The best trial of a sweep."""
    links: list[Link] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    updated: float = 0.0
    """Time of the last write, in seconds since 1970."""


class Run(ABC):
    """A run on disk. ``rows`` are the points of its curves; ``generation`` grows when earlier rows were dropped."""

    kind: ClassVar[str]

    def __init__(self, path: Path, name: str, syntheses: dict[str, Settings]):
        """Follow the run at ``path``, shown as ``name``.

        ``syntheses`` has the settings of all finished syntheses by their output, as their recipes name it.
        """
        self.path, self.name, self.syntheses = path, name, syntheses
        self.rows: list[dict[str, Any]] = []
        self.generation = 0
        self._seen: dict[Path, tuple[float, int, int]] = {}
        self._card = Card(self.kind, name)

    def look(self) -> Card:
        """Read what is new and return the card; the same object if no file has changed."""
        try:
            seen = {file: status for file in self.files() if (status := _status(file))}
        except OSError:  # the run was just deleted
            return self._card
        if seen != self._seen:
            self._seen = seen
            self._card = self._read(max((time for time, _, _ in seen.values()), default=0.0))
        return self._card

    def _read(self, updated: float) -> Card:
        try:
            card = Card(self.kind, self.name, updated=updated, **self.read())
            json.dumps(asdict(card), allow_nan=False)  # ValueError for a number that browsers cannot read
            return card
        except (UserError, OSError, *MALFORMED) as error:
            known = isinstance(error, UserError | OSError)
            problem = str(error) if known else f"cannot be read ({type(error).__name__}: {error})"
            return Card(self.kind, self.name, updated=updated, problems=[problem])

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the files to watch; they need not exist."""

    @abstractmethod
    def read(self) -> dict[str, Any]:
        """Return the fields of the card; `MALFORMED` may be raised for files of another shape."""


def counted(count: int, noun: str, nouns: str) -> str:
    """Return a number with its noun, such as "2 cells"."""
    return f"{count:,} {noun if count == 1 else nouns}"


def _status(path: Path) -> tuple[float, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime, status.st_size, status.st_ino
