"""Resumable processing of many items, such as the questions of a synthesis or an evaluation.

Each completed item is a line of ``<output>.partial``. A run that is started again with the same settings skips the
completed items and repeats those that were in progress. An item ends in one of three ways:

- done: its records are kept.
- refused: its content is unfit or a service refuses it for good (`rag_train.errors.Refused`), such as a question
  that is too long or that a filter blocks. It is counted by its reason, and blocks nothing else.
- open: what could be mended by time or by the user prevents it, such as a service that fails for too long
  (`rag_train.jobs.retries`), or a key that is rejected. A line of the partial file keeps its error, its cost and
  what it had done, and the next run tries it again.

If all of the first items are refused for the same reason, the fault is in the settings rather than in the items:
the run ends, and the items stay open.

When all items are done or refused, the records are written to ``<output>`` in the order of the items, the rejected
records to ``<output>.rejected.jsonl`` (if there are any), and the sidecar to ``<output>.meta.json``. The files are
the same whether or not the run was interrupted.

Several processes can share the items: shard i of n processes items i, i + n, ... and has its own partial file. The
process that completes the last item writes the output, which depends neither on n nor on the assignment of items to
processes.

Files are read and written in a stream (`rag_train.jobs.partial`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from rag_train.errors import PromptTooLong, Refused, ServiceError, UserError
from rag_train.jobs.files import new_file, to_json
from rag_train.jobs.partial import append, claimed, completed, partial_files, rejected_file, sidecar
from rag_train.jobs.retries import IN_A_ROW, VARIABLE, ItemState, Patience, patience_seconds
from rag_train.progress import progress
from rag_train.provenance import code_version
from rag_train.schema import SCHEMA_VERSION, LLMCall, Record

Item = TypeVar("Item", bound=BaseModel)

IN_FLIGHT = 512
"""Maximum number of items in progress: enough to fill the engine's batch, and few enough to keep their prompts
cached."""
LOOK = 5.0
"""Seconds between two looks for services that do not answer."""
UNFIT = (Refused, ValidationError, UnicodeError)
"""Errors that concern the content of an item: trying again would raise them again."""
NO_PASSAGES = "no passages"
"""Name of the count of items for which retrievers were asked and returned no passage."""


class OpenItems(UserError):
    """Items stay open; ``gone``: a service that they need is gone, and other runs would fail too."""

    def __init__(self, message: str, gone: bool):
        super().__init__(message)
        self.gone = gone


class Rejected(Record):
    """A record that was left out of the data, or an item that was refused.

    ``reason`` is one of a few fixed texts; ``text`` shows the record, or says why the item was refused.
    """

    id: str
    reason: str
    text: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of one item: its records, its counts (see `cost`), and its rejected records."""

    records: Sequence[Record]
    counts: dict[str, int]
    rejected: Sequence[Rejected] = ()


def cost(calls: Iterable[LLMCall]) -> dict[str, int]:
    """Return the counts of engine calls, tokens and texts that were cut for an `Outcome`.

    The progress bar shows the token counts.
    """
    calls = list(calls)
    cut = sum(call.cut for call in calls)
    return ({"cut_texts": cut} if cut else {}) | {
        "engine_calls": len(calls),
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "completion_tokens": sum(call.completion_tokens for call in calls),
    }


class Shard(NamedTuple):
    """The share of one process: items ``number``, ``number + of``, ..., counted from 1."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a shard such as ``2/8``. Raises UserError if ``text`` does not have this form."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UserError(f"--shard {text}: not a shard; give a number and a total, such as 1/4")
        return cls(int(match[1]), int(match[2]))

    def partial(self, output: Path) -> Path:
        """Return the path of this shard's partial file."""
        return Path(f"{output}.partial" if self.of == 1 else f"{output}.{self.number}-of-{self.of}.partial")


WHOLE = Shard(1, 1)


@dataclass(frozen=True)
class Summary:
    """The result of a run.

    Attributes:
        output: path of the output file.
        items: number of items of all shards.
        records, counts, rejected: totals over all completed items, including those of earlier runs; ``rejected`` is
            counted by reason.
        items_done: number of items that this run completed.
        seconds: duration of this run.
        remaining: number of items that are not completed yet.
        open: number of the remaining items that were tried and stay open because a service failed.
        retried: number of attempts that this run repeated because a service failed.
    """

    output: str
    items: int
    records: int
    counts: dict[str, int]
    rejected: dict[str, int] = field(default_factory=dict)
    items_done: int = 0
    seconds: float = 0.0
    remaining: int = 0
    open: int = 0
    retried: int = 0


def fingerprint(settings: dict[str, Any], items: Sequence[BaseModel]) -> str:
    """Return a hash of the settings and the items, which determine the output."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for item in items:
        digest.update(item.model_dump_json().encode())
    return digest.hexdigest()


async def run(
    items: Sequence[Item],
    work: Callable[[Item], Coroutine[Any, Any, Outcome]],
    output: Path,
    settings: dict[str, Any],
    *,
    label: str,
    shard: Shard = WHOLE,
    in_flight: int = IN_FLIGHT,
    proven: bool = False,
) -> Summary:
    """Process the items of ``shard`` with ``work``, and write the output if the items of all shards are complete.

    ``settings`` are written to the sidecar. ``work`` raises one of `UNFIT` if the item is refused, and another
    UserError if it stays open; in both cases, the records in `ItemState.records` are kept. ``proven`` says that
    other items were done with the same settings, so that these are not at fault if all items are refused.

    Raises:
        OpenItems: if items of this shard stay open.
        UserError: if ``output`` or a partial file was made with different settings, or if another process is
            processing the same shard; no file is overwritten.
    """
    start = time.monotonic()
    key = fingerprint(settings, items)
    if output.exists():
        return _finished(output, key)
    output.parent.mkdir(parents=True, exist_ok=True)
    with claimed(shard.partial(output), key, len(items)) as file:
        mine = range(shard.number - 1, len(items), shard.of)
        counts = Counter[str]()
        with completed(output, key, len(items)) as done:
            for line in done.lines(mine):
                counts.update(line["counts"])
                proven = proven or "refused" not in line
        todo = sum(i not in done for i in mine)
        with progress(label, len(mine), len(mine) - todo) as advance:
            workers = min(in_flight, todo)
            patience = Patience(patience_seconds(), workers, lambda n, error: advance(0, _waiting_note(n, error)))
            queue = (i for i in mine if i not in done)
            failed: list[UserError] = []
            refusals = _Refusals(file, max(workers, IN_A_ROW), proven)

            async def process(i: int) -> None:
                so_far = ItemState()
                try:
                    outcome = await patience.complete(partial(work, items[i]), so_far)
                except UNFIT as error:
                    refusals.add(i, items[i], error, so_far)
                except UserError as error:
                    failed.append(error)
                    append(file, _open_line(i, error, so_far))
                    return
                else:
                    refusals.write()
                    outcome = replace(outcome, counts=outcome.counts | _without_passages(so_far))
                    append(file, _completed_line(i, outcome))
                    counts.update(outcome.counts)
                advance(1, tokens_note(counts))

            async def worker() -> None:
                for i in queue:
                    await process(i)
                    if patience.over.is_set() or refusals.too_many:
                        return

            async def watch() -> None:
                told = False
                while True:
                    await asyncio.sleep(LOOK)
                    if (note := patience.quiet()) or told:
                        advance(0, note or tokens_note(counts))
                    told = bool(note)

            # If a worker fails, the TaskGroup cancels the others; their completed items are already on disk.
            watching = asyncio.create_task(watch())
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(workers):
                        group.create_task(worker())
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from errors
            finally:
                watching.cancel()
            refused = refusals.end(failed)
        os.fsync(file.fileno())
        summary = _merge(output, shard, len(items), settings, key)
    if refused:
        raise OpenItems(_refused_message(summary, refused), gone=False) from refused
    if failed:
        raise OpenItems(_open_message(summary, failed[-1], patience), patience.over.is_set()) from failed[-1]
    return replace(summary, items_done=todo, seconds=time.monotonic() - start, retried=patience.retried)


def _completed_line(i: int, outcome: Outcome) -> dict[str, Any]:
    return {
        "item": i,
        "records": [record.model_dump(mode="json") for record in outcome.records],
        "counts": outcome.counts,
        "rejected": [rejected.model_dump(mode="json") for rejected in outcome.rejected],
    }


def _refused_line(i: int, item: BaseModel, error: ValueError, so_far: ItemState) -> dict[str, Any]:
    """Return the line of an item that is refused; the cost of its calls is counted."""
    rejected = Rejected(id=getattr(item, "id", ""), reason=reason_of(error), text=str(error))
    counts = (cost(so_far.calls) if so_far.calls else {}) | _without_passages(so_far)
    return _completed_line(i, Outcome(so_far.records, counts, [rejected])) | {"refused": rejected.reason}


def _open_line(i: int, error: Exception, so_far: ItemState) -> dict[str, Any]:
    records = [record.model_dump(mode="json") for record in so_far.records]
    return {"open": i, "error": str(error), "counts": cost(so_far.calls), "records": records}


def reason_of(error: ValueError) -> str:
    """Return the reason by which an item with one of the errors `UNFIT` is counted."""
    return error.reason if isinstance(error, Refused) else "invalid"


def _without_passages(so_far: ItemState) -> dict[str, int]:
    return {NO_PASSAGES: 1} if so_far.queries and not so_far.passages else {}


class _Refusals:
    """Writes the lines of refused items, but holds the first ones back until an item is done.

    Args:
        file: the partial file.
        most: number of refusals for one reason, and of no item done, after which the run ends.
        proven: whether an item was done before.
    """

    def __init__(self, file: FileIO, most: int, proven: bool):
        self._file = file
        self._most = most
        self._proven = proven
        self._held: list[tuple[int, BaseModel, ValueError, ItemState]] = []

    @property
    def too_many(self) -> bool:
        """Whether all of the first items were refused for one reason."""
        return len(self._held) >= self._most

    def add(self, i: int, item: BaseModel, error: ValueError, so_far: ItemState) -> None:
        """Note that an item was refused. What is too long or invalid concerns the item, and is written at once."""
        if self._proven or not isinstance(error, Refused) or isinstance(error, PromptTooLong):
            append(self._file, _refused_line(i, item, error, so_far))
            return
        self._held.append((i, item, error, so_far))
        if self.too_many and len({reason_of(error) for _, _, error, _ in self._held}) > 1:
            self.write()

    def write(self) -> None:
        """Write the refusals that were held back: an item was done, so that they concern their items."""
        self._proven = True
        for held in self._held:
            append(self._file, _refused_line(*held))
        self._held = []

    def end(self, failed: Sequence[UserError]) -> ValueError | None:
        """Write the refusals that are still held back.

        If they have one reason and no item was done, the items stay open, and one of their errors is returned.
        """
        if len({reason_of(error) for _, _, error, _ in self._held}) > 1:
            self.write()
        for i, _, error, so_far in self._held:
            append(self._file, _open_line(i, error, so_far))
        return self._held[-1][2] if self._held and not failed else None


def _waiting_note(waiting: int, error: ServiceError) -> str:
    return f"{waiting:,} waiting to try again: {str(error)[:60]}"


def _open_message(summary: Summary, error: UserError, patience: Patience) -> str:
    done = f"{summary.items - summary.remaining:,} of {summary.items:,} questions done, {summary.open:,} open"
    remedy = f"give the same command again to go on; {VARIABLE}=SECONDS waits longer than {patience.seconds:g} s"
    return f"{summary.output}: {done} ({error}); {remedy}"


def _refused_message(summary: Summary, error: ValueError) -> str:
    refused = f"{summary.open:,} of {summary.items:,} were refused ({reason_of(error)}: {error})"
    remedy = "correct the model, its server or the prompts, and give the command again"
    return f"{summary.output}: no question was done, and {refused}; {remedy}"


def tokens_note(counts: Mapping[str, int]) -> str:
    """Return the token counts as text; empty if there were no engine calls."""
    read, written = counts.get("prompt_tokens", 0), counts.get("completion_tokens", 0)
    return f"{read:,} tokens read, {written:,} written" if read or written else ""


def summary_line(summary: Summary) -> str:
    """Describe the result of a run in one line."""
    parts = [f"{summary.records:,} records of {summary.items - summary.remaining:,} questions"]
    if summary.counts:
        parts[0] += f" ({_listed(summary.counts)})"
    if summary.rejected:
        parts.append(f"rejected: {_listed(summary.rejected)}")
    if summary.remaining:
        parts.append(f"{summary.remaining:,} questions remain for other shards")
    if summary.open:
        parts.append(f"{summary.open:,} of them open after failures of a service")
    if (without := summary.counts.get(NO_PASSAGES)) and without == summary.items - summary.remaining:
        parts.append("no search found a passage: check the retriever")
    if summary.retried:
        parts.append(f"{summary.retried:,} attempts repeated after failures of a service")
    return f"{summary.output}: {'; '.join(parts)}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


@dataclass
class _Totals:
    """Totals over the lines of completed items."""

    records: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)

    def add(self, line: dict[str, Any]) -> None:
        self.records += len(line["records"])
        self.counts.update(line["counts"])
        self.rejected.update(record["reason"] for record in line["rejected"])


def _merge(output: Path, shard: Shard, items: int, settings: dict[str, Any], key: str) -> Summary:
    """Write the output if all items are complete.

    If two shards do this at the same time, they write the same files.
    """
    totals = _Totals()
    with completed(output, key, items) as done:
        if output.exists():  # another shard has written the output
            return _finished(output, key)
        lines = done.lines(range(items))
        if remaining := items - done.count:
            for line in lines:
                totals.add(line)
            summary = Summary(str(output), items, totals.records, dict(totals.counts), dict(totals.rejected))
            return replace(summary, remaining=remaining, open=done.open)
        new = partial(new_file, writer=f"{shard.number}-of-{shard.of}")
        # The output takes its place last: its existence means that the run is complete.
        with (
            new(output) as records,
            new(sidecar(output)) as meta,
            new(rejected_file(output), empty=False) as rejected,
        ):
            for line in lines:
                totals.add(line)
                records.writelines(f"{to_json(record)}\n" for record in line["records"])
                rejected.writelines(f"{to_json(record)}\n" for record in line["rejected"])
            told = {
                "schema_version": SCHEMA_VERSION,
                "code_version": code_version(),
                "fingerprint": key,
                "settings": settings,
                "items": items,
                "records": totals.records,
                "counts": dict(sorted(totals.counts.items())),
                "rejected": dict(sorted(totals.rejected.items())),
            }
            meta.write(json.dumps(told, indent=2, default=str) + "\n")
    return _finished(output, key)


def _finished(output: Path, key: str) -> Summary:
    """Return the summary of an existing output, and delete its partial files.

    Raises UserError if the output was made with different settings.
    """
    try:
        meta = json.loads(sidecar(output).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        meta = {}
    if meta.get("fingerprint") != key:
        raise UserError(
            f"{output}: already exists and was made with a different recipe; delete it or choose another output"
        )
    for part in partial_files(output):
        part.unlink(missing_ok=True)
    return Summary(str(output), meta["items"], meta["records"], meta["counts"], meta.get("rejected", {}))
