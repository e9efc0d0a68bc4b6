"""Finds the runs below a directory, follows their files, and tells each reader what is new to it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from rag_train.eval.board.cards import Card, Run
from rag_train.eval.board.commands import Settings
from rag_train.eval.board.records import Evaluation, Synthesis
from rag_train.eval.board.trainings import Sweep, Training
from rag_train.eval.matrix.cell import MATRIX
from rag_train.jobs.partial import PARTIAL, SIDECAR
from rag_train.training.result import METRICS

KINDS: Sequence[type[Run]] = (Synthesis, Training, Sweep, Evaluation)
"""The kinds of runs, in the order in which they are read: trainings use what syntheses say."""
PARTS: dict[type[Run], set[str]] = {
    Training: {"checkpoints", "evaluating", "best", "tensorboard", "wandb"},
    Evaluation: {"answers", "cells", "questions"},
}
"""Folders that belong to a run: what they hold is not a run of its own."""


@dataclass
class Found:
    """The runs below a directory, by kind and path, and its pages that no card links to."""

    runs: list[tuple[type[Run], Path]] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)


def find(root: Path) -> Found:
    """Find the runs and the pages below ``root``. Hidden folders, linked folders and linked pages are left out."""
    found = Found()
    for place, folders, files in os.walk(root):
        folder = Path(place)
        kinds = [kind for kind, here in _signs(folder, folders, files) if here]
        found.runs += [(kind, folder) for kind in kinds]
        if Sweep in kinds:
            folders.clear()  # its trials
            continue
        found.runs += [(Synthesis, folder / name) for name in sorted(_outputs(files))]
        pages = (folder / name for name in sorted(files) if name.endswith(".html"))
        found.pages += [page.relative_to(root).as_posix() for page in pages if not page.is_symlink()]
        parts = {name for kind in kinds for name in PARTS[kind]}
        folders[:] = sorted(name for name in folders if name not in parts and not name.startswith("."))
    return found


def _signs(folder: Path, folders: list[str], files: list[str]) -> Iterator[tuple[type[Run], bool]]:
    """Yield for each kind of run whether ``folder`` is one."""
    yield Sweep, "sweep.json" in files
    yield Training, METRICS in files
    answers = "answers" in folders and any(folder.glob("answers/*/*.questions.jsonl"))
    yield Evaluation, MATRIX in files or answers


def _outputs(files: list[str]) -> set[str]:
    """Return the outputs of `rag_train.jobs.items` among the names of a folder's files."""
    partial = {match[1] for name in files if (match := PARTIAL.fullmatch(name))}
    finished = {name for name in files if f"{name}{SIDECAR}" in files}
    return {name for name in partial | finished if not name.endswith(".html")}


@dataclass
class Reader:
    """What a reader of the board has been told: of each run its card, generation and number of rows; the pages."""

    told: dict[str, tuple[Card, int, int]] = field(default_factory=dict)
    pages: list[str] | None = None


class Board:
    """The runs below ``root``. They are read at most once in ``every`` seconds, for all readers together."""

    def __init__(self, root: Path, every: float = 1.0):
        self.root, self._every = root, every
        self._syntheses: dict[str, Settings] = {}
        self._runs: dict[str, Run] = {}
        self._cards: dict[str, Card] = {}
        self._pages: list[str] = []
        self._next = 0.0
        self._lock = Lock()

    def news(self, reader: Reader) -> dict[str, Any]:
        """Return what is new to ``reader``: cards that changed, new points, runs that are gone, and the pages."""
        with self._lock:
            self._look()
            runs = [change for id in self._cards if (change := self._change(id, reader))]
            gone = [id for id in reader.told if id not in self._cards]
            for id in gone:
                del reader.told[id]
            news: dict[str, Any] = {"runs": runs} if runs else {}
            if gone:
                news["gone"] = gone
            if reader.pages != self._pages:
                news["pages"] = reader.pages = self._pages
            return news

    def _look(self) -> None:
        start = time.monotonic()
        if start < self._next:
            return
        found = find(self.root)
        runs = {f"{kind.kind} {path}": (kind, path) for kind, path in found.runs}
        for id, (kind, path) in sorted(runs.items(), key=lambda item: KINDS.index(item[1][0])):
            name = path.relative_to(self.root).as_posix()
            run = self._runs.get(id) or kind(path, "" if name == "." else name, self._syntheses)
            self._runs[id], self._cards[id] = run, run.look()
        for id in self._runs.keys() - runs.keys():
            del self._runs[id], self._cards[id]
        self._pages = found.pages
        took = time.monotonic() - start
        self._next = start + self._every * max(1.0, 10 * took)  # at most a tenth of a core for a large directory

    def _change(self, id: str, reader: Reader) -> dict[str, Any] | None:
        run, card = self._runs[id], self._cards[id]
        before, generation, rows = reader.told.get(id, (None, run.generation, 0))
        change: dict[str, Any] = {} if card is before else {"card": asdict(card)}
        if generation != run.generation:
            change["restart"], rows = True, 0
        if new := run.rows[rows:]:
            change["rows"] = new
        reader.told[id] = (card, run.generation, len(run.rows))
        return {"id": id} | change if change else None
