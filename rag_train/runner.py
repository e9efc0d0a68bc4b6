"""Runs work on many items at once (a factory, a strategy), and survives being killed.

Each finished item is one line in ``<output>.partial``; a run started again with the same recipe skips those and
redoes what was in flight. When all are done the records are written in the items' order to ``<output>`` and the
sidecar ``<output>.meta.json``, so that the file does not depend on when, or whether, the run was interrupted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from rag_train.errors import UserError
from rag_train.progress import progress
from rag_train.provenance import code_version
from rag_train.schema import SCHEMA_VERSION, Record

Item = TypeVar("Item", bound=BaseModel)

IN_FLIGHT = 512
"""Items worked on at once: enough to keep an engine's batch full, few enough to keep their prompts cached."""


@dataclass(frozen=True)
class Outcome:
    """What became of one item: its records (none if rejected), and counts to add up, such as engine calls."""

    records: Sequence[Record]
    counts: dict[str, int]


@dataclass(frozen=True)
class Summary:
    """``counts`` over all items; ``seconds`` and ``items_done`` of this run alone."""

    output: str
    items: int
    records: int
    counts: dict[str, int]
    items_done: int
    seconds: float


def fingerprint(settings: dict[str, Any], items: Sequence[BaseModel]) -> str:
    """Hash of everything that decides the output: settings, items and code version."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for item in items:
        digest.update(item.model_dump_json().encode())
    return digest.hexdigest()


async def run(
    items: Sequence[Item],
    work: Callable[[Item], Awaitable[Outcome]],
    output: Path,
    settings: dict[str, Any],
    *,
    label: str,
    in_flight: int = IN_FLIGHT,
) -> Summary:
    """Do ``work`` on every item and write the records. ``settings`` go into the sidecar.

    Raises UserError if ``output`` or its partial file came of other settings: nothing is overwritten.
    """
    start = time.monotonic()
    key = fingerprint(settings, items)
    meta_path, partial = Path(f"{output}.meta.json"), Path(f"{output}.partial")
    if output.exists():
        return _finished(output, meta_path, key)
    output.parent.mkdir(parents=True, exist_ok=True)
    done = _resume(partial, key)
    todo = [(i, item) for i, item in enumerate(items) if i not in done]

    with partial.open("a", encoding="utf-8") as file, progress(label, len(items), len(done)) as advance:
        if not done and not file.tell():
            _append(file, {"fingerprint": key})
        queue = iter(todo)

        async def worker() -> None:
            for i, item in queue:
                outcome = await work(item)
                lines = [record.model_dump(mode="json") for record in outcome.records]
                done[i] = {"item": i, "records": lines, "counts": outcome.counts}
                _append(file, done[i])
                advance()

        # A TaskGroup cancels the other workers when one fails; what they had finished is on disk.
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(in_flight, len(todo))):
                    group.create_task(worker())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        os.fsync(file.fileno())

    counts: Counter[str] = Counter()
    records = 0
    temporary = Path(f"{output}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        for i in range(len(items)):
            counts.update(done[i]["counts"])
            for record in done[i]["records"]:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                records += 1
        file.flush()
        os.fsync(file.fileno())
    meta = {
        "schema_version": SCHEMA_VERSION,
        "code_version": code_version(),
        "fingerprint": key,
        "settings": settings,
        "items": len(items),
        "records": records,
        "counts": dict(sorted(counts.items())),
    }
    meta_path.write_text(json.dumps(meta, indent=2, default=str) + "\n", encoding="utf-8")
    temporary.rename(output)
    partial.unlink()
    return Summary(str(output), len(items), records, dict(counts), len(todo), time.monotonic() - start)


def _append(file, value: dict[str, Any]) -> None:
    file.write(json.dumps(value, ensure_ascii=False) + "\n")
    file.flush()


def _finished(output: Path, meta_path: Path, key: str) -> Summary:
    try:
        meta = json.loads(meta_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        meta = {}
    if meta.get("fingerprint") != key:
        raise UserError(f"{output}: exists already and came of another recipe; delete it or choose another output")
    return Summary(str(output), meta["items"], meta["records"], meta["counts"], 0, 0.0)


def _resume(partial: Path, key: str) -> dict[int, dict[str, Any]]:
    """Finished items of an interrupted run. A last line cut short by the kill is dropped from the file."""
    if not partial.exists():
        return {}
    data = partial.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        with partial.open("r+b") as file:
            file.truncate(len(whole))
    lines = [json.loads(line) for line in whole.splitlines()]
    if lines and lines[0].get("fingerprint") != key:
        raise UserError(f"{partial}: began under another recipe; delete it or choose another output")
    return {line["item"]: line for line in lines[1:]}
