"""Syntheses and evaluations: how many items are done, open and rejected, and the last records."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rag_train.eval.board.cards import Link, Progress, Run, Shown, counted
from rag_train.eval.board.commands import Settings, after_evaluation, after_synthesis
from rag_train.eval.board.files import Tail, read_object
from rag_train.eval.matrix.cell import MATRIX, load_matrix
from rag_train.jobs.partial import partial_files, sidecar

LAST = 5
"""Number of the last records and rejections that are shown."""
TEXT = 600
"""Maximum number of characters shown of a record."""


class Part:
    """Follows one partial file of a run of `rag_train.jobs.items`."""

    def __init__(self, path: Path):
        self._tail = Tail(path, self._begin, self._take)
        self._begin()

    def _begin(self) -> None:
        self.items: int | None = None
        self.done = self.written = 0
        self.open: dict[int, Shown] = {}
        self.counts: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        self.records: deque[Shown] = deque(maxlen=LAST)
        self.rejections: deque[Shown] = deque(maxlen=LAST)

    def look(self) -> str:
        """Read what is new; return what could not be read, or ""."""
        self._tail.look()
        return self._tail.problem

    def _take(self, line: dict[str, Any]) -> None:
        if "fingerprint" in line:
            self.items = line.get("items")
        elif "open" in line:
            self.open[line["open"]] = Shown(f"item {line['open']}", "open", str(line["error"])[:TEXT])
        else:
            self._complete(line["item"], line["records"], line["rejected"], line["counts"])

    def _complete(self, item: int, records: list[Any], rejected: list[Any], counts: dict[str, int]) -> None:
        self.open.pop(item, None)
        self.done += 1
        self.written += len(records)
        self.counts.update(counts)
        self.rejected.update(record["reason"] for record in rejected)
        self.records.extend(map(shown, records))
        self.rejections.extend(map(shown, rejected))


def shown(record: Mapping[str, Any]) -> Shown:
    """Return what the page shows of a record of any type: the end of what was asked, and what was written."""
    asked = str(record.get("question") or record.get("prompt") or record.get("text") or "").strip()
    written = str(record.get("completion") or record.get("chosen") or record.get("answer") or "").strip()
    id = str(record.get("id") or record.get("question_id"))
    text = "\n".join(part for part in (asked[-TEXT:], written[:TEXT]) if part)
    return Shown(id, str(record.get("reason", "")), text)


class Output:
    """Follows one output of `rag_train.jobs.items`: its partial files, and once it is complete, its sidecar."""

    def __init__(self, path: Path):
        self.path = path
        self.parts: dict[Path, Part] = {}
        self.meta: dict[str, Any] = {}

    @property
    def finished(self) -> bool:
        return self.path.is_file()

    def files(self) -> list[Path]:
        return [*partial_files(self.path), sidecar(self.path), self.path]

    def look(self, problems: list[str]) -> None:
        """Read what is new."""
        self.meta = read_object(sidecar(self.path), problems) if self.finished else {}
        parts = [] if self.finished else partial_files(self.path)
        self.parts = {path: self.parts.get(path) or Part(path) for path in parts}
        problems += filter(None, [part.look() for part in self.parts.values()])

    def progress(self, name: str) -> Progress:
        """Return how far the output has come, as ``name``."""
        parts = self.parts.values()
        counts = sum((part.counts for part in parts), Counter[str]()) | Counter(self.meta.get("counts"))
        rejected = sum((part.rejected for part in parts), Counter[str]()) | Counter(self.meta.get("rejected"))
        return Progress(
            name=name,
            done=self.meta.get("items", 0) + sum(part.done for part in parts),
            of=self.meta.get("items") or next((part.items for part in parts if part.items), None),
            open=sum(len(part.open) for part in parts),
            rejected=dict(rejected.most_common()),
            records=self.meta.get("records", 0) + sum(part.written for part in parts),
            read=counts["prompt_tokens"],
            written=counts["completion_tokens"],
        )

    def rejections(self) -> Iterator[Shown]:
        """Yield the last rejections, and the items that stay open with their errors."""
        for part in self.parts.values():
            yield from part.rejections
            yield from list(part.open.values())[-LAST:]


class Synthesis(Run):
    """The synthesis of a file of records: the path of the file."""

    kind = "synthesis"

    def __init__(self, path: Path, name: str, syntheses: dict[str, Settings]):
        super().__init__(path, name, syntheses)
        self._output = Output(path)

    def files(self) -> list[Path]:
        return self._output.files()

    def read(self) -> dict[str, Any]:
        problems: list[str] = []
        self._output.look(problems)
        settings = self._output.meta.get("settings", {})
        progress = self._output.progress("")
        finished = self._output.finished
        if "output" in settings:
            self.syntheses[settings["output"]] = settings
        known = (name for name in ("method", "stage", "model") if settings.get(name))
        return {
            "finished": finished,
            "line": _line(progress),
            "share": progress.done / progress.of if progress.of else None,
            "facts": {name.capitalize(): str(settings[name]) for name in known},
            "progress": [progress],
            "records": [shown for part in self._output.parts.values() for shown in part.records][-LAST:],
            "rejections": list(self._output.rejections())[-LAST:],
            "links": [Link("Records", f"records/{quote(self.name)}")] if finished else [],
            "commands": after_synthesis(self.path, settings) if finished else [],
            "problems": problems,
        }


def _line(progress: Progress) -> str:
    of = f" of {progress.of:,}" if progress.of is not None else ""
    words = [f"{progress.done:,}{of} done", counted(progress.records, "record", "records")]
    words += [f"{sum(progress.rejected.values()):,} rejected"] * bool(progress.rejected)
    return ", ".join(words + [f"{progress.open:,} open"] * bool(progress.open))


class Evaluation(Run):
    """An evaluation: the directory of a matrix, complete or not."""

    kind = "evaluation"

    def __init__(self, path: Path, name: str, syntheses: dict[str, Settings]):
        super().__init__(path, name, syntheses)
        self._batches: dict[Path, Output] = {}

    def files(self) -> list[Path]:
        asked = sorted(self.path.glob("answers/*/*.questions.jsonl"))
        paths = [path.with_name(path.name.replace(".questions", "")) for path in asked]
        self._batches = {path: self._batches.get(path) or Output(path) for path in paths}
        return [self.path / MATRIX, *(file for batch in self._batches.values() for file in batch.files())]

    def read(self) -> dict[str, Any]:
        problems: list[str] = []
        for batch in self._batches.values():
            batch.look(problems)
        cells = load_matrix(self.path).cells if (self.path / MATRIX).is_file() else []
        running = [batch for batch in self._batches.values() if not batch.finished]
        parts = [part for batch in running for part in batch.parts.values()]
        report = Link("Report", f"report/{quote(self.name)}")
        facts = {
            f"{noun.capitalize()}s": ", ".join(sorted({str(getattr(cell, noun)) for cell in cells}))
            for noun in ("model", "dataset", "retriever")
        }
        counts = [
            counted(len(cells), "cell", "cells"),
            counted(len(self._batches), "set of answers", "sets of answers"),
            counted(len(running), "unfinished", "unfinished"),
        ]
        left = [batch.progress(_strategy(batch)) for batch in self._batches.values()]
        return {
            "finished": not running,
            "line": ", ".join(text for text in counts if not text.startswith("0 ")),
            "facts": {name: text for name, text in facts.items() if text},
            "progress": left,
            "records": [shown for part in parts for shown in part.records][-LAST:],
            "rejections": [shown for batch in running for shown in batch.rejections()][-LAST:],
            "links": [report] if cells else [],
            "commands": after_evaluation(self.path) if cells else [],
            "problems": problems,
        }


def _strategy(batch: Output) -> str:
    """Return the strategy and the model of a batch of answers, as far as its files say them."""
    settings = batch.meta.get("settings", {})
    model = str(settings.get("model", "")).rstrip("/").rpartition("/")[2]
    return ", ".join(filter(None, [settings.get("strategy", f"answers/{batch.path.parent.name}"), model[:20]]))
