"""Resumable processing of many items, such as the questions of a synthesis or an evaluation.

Each completed item is a line of ``<output>.partial``. A run that is started again with the same settings skips the
completed items and repeats those that were in progress. An item stays open if a service that it needs fails for too
long (`rag_train.patience`): a line of the partial file keeps its error, its cost and what it had done, and the next
run tries it again. An item whose content is unfit, such as a question that is too long, is rejected.

When all items are complete, the records are written to ``<output>`` in the order of the items, the rejected records
to ``<output>.rejected.jsonl`` (if there are any), and the sidecar to ``<output>.meta.json``. The files are the same
whether or not the run was interrupted.

Several processes can share the items: shard i of n processes items i, i + n, ... and has its own partial file. The
process that completes the last item writes the output, which depends neither on n nor on the assignment of items to
processes.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import io
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from rag_train.errors import PromptTooLong, ServiceError, UserError
from rag_train.llm.memo import Kept
from rag_train.patience import VARIABLE, Patience
from rag_train.patience import seconds as patience_seconds
from rag_train.progress import progress
from rag_train.provenance import code_version
from rag_train.schema import SCHEMA_VERSION, LLMCall, Record

Item = TypeVar("Item", bound=BaseModel)

IN_FLIGHT = 512
"""Maximum number of items in progress: enough to fill the engine's batch, and few enough to keep their prompts
cached."""


UNFIT = (PromptTooLong, ValidationError)
"""Errors that concern the content of an item: trying again would raise them again."""


class OpenItems(UserError):
    """Items stay open because a service failed; ``gone``: it is gone, and other runs would fail too."""

    def __init__(self, message: str, gone: bool):
        super().__init__(message)
        self.gone = gone


class Rejected(Record):
    """A record that was left out of the data: ``reason`` is one of a few fixed texts, ``text`` shows the record."""

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
    """Return the counts of engine calls and tokens for an `Outcome`. The progress bar shows the token counts."""
    calls = list(calls)
    return {
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
) -> Summary:
    """Process the items of ``shard`` with ``work``, and write the output if the items of all shards are complete.

    ``settings`` are written to the sidecar.

    Raises:
        OpenItems: if items of this shard stay open because a service failed.
        UserError: if ``output`` or a partial file was made with different settings, or if another process is
            processing the same shard; no file is overwritten.
    """
    start = time.monotonic()
    key = fingerprint(settings, items)
    if output.exists():
        return _finished(output, key)
    output.parent.mkdir(parents=True, exist_ok=True)
    with _claimed(shard.partial(output)) as file:
        done, _ = _lines(output, key)
        mine = range(shard.number - 1, len(items), shard.of)
        todo = [i for i in mine if i not in done]
        counts = Counter[str]()
        for i in mine:
            counts.update(done[i]["counts"] if i in done else {})
        if not file.tell():
            _append(file, {"fingerprint": key})
        with progress(label, len(mine), len(mine) - len(todo)) as advance:
            workers = min(in_flight, len(todo))
            patience = Patience(patience_seconds(), workers, lambda *waiting: advance(0, _waiting_note(*waiting)))
            queue = iter(todo)
            failed: list[UserError] = []

            async def process(i: int) -> None:
                so_far = Kept()
                try:
                    outcome = await patience.complete(partial(work, items[i]), so_far)
                except UNFIT as error:
                    outcome = _unfit(items[i], error, so_far)
                except UserError as error:
                    failed.append(error)
                    _append(file, _open_line(i, error, so_far))
                    return
                _append(file, _completed_line(i, outcome))
                counts.update(outcome.counts)
                advance(1, tokens_note(counts))

            async def worker() -> None:
                for i in queue:
                    await process(i)
                    if patience.over.is_set():
                        return

            # If a worker fails, the TaskGroup cancels the others; their completed items are already on disk.
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(workers):
                        group.create_task(worker())
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from errors
        os.fsync(file.fileno())
        summary = _merge(output, shard, len(items), settings, key)
    if failed:
        raise OpenItems(_open_message(summary, failed[-1], patience), patience.over.is_set()) from failed[-1]
    return replace(summary, items_done=len(todo), seconds=time.monotonic() - start, retried=patience.retried)


def _completed_line(i: int, outcome: Outcome) -> dict[str, Any]:
    return {
        "item": i,
        "records": [record.model_dump(mode="json") for record in outcome.records],
        "counts": outcome.counts,
        "rejected": [rejected.model_dump(mode="json") for rejected in outcome.rejected],
    }


def _open_line(i: int, error: UserError, so_far: Kept) -> dict[str, Any]:
    records = [record.model_dump(mode="json") for record in so_far.records]
    return {"open": i, "error": str(error), "counts": cost(so_far.calls), "records": records}


def _unfit(item: BaseModel, error: ValueError, so_far: Kept) -> Outcome:
    """Return the outcome of an item whose content is unfit; the cost of its calls is counted."""
    reason = "too long" if isinstance(error, PromptTooLong) else "invalid"
    rejected = Rejected(id=getattr(item, "id", ""), reason=reason, text=str(error))
    return Outcome([], cost(so_far.calls) if so_far.calls else {}, [rejected])


def _waiting_note(waiting: int, error: ServiceError) -> str:
    return f"{waiting:,} waiting to try again: {str(error)[:60]}"


def _open_message(summary: Summary, error: UserError, patience: Patience) -> str:
    done = f"{summary.items - summary.remaining:,} of {summary.items:,} questions done, {summary.open:,} open"
    remedy = f"give the same command again to go on; {VARIABLE}=SECONDS waits longer than {patience.seconds:g} s"
    return f"{summary.output}: {done} ({error}); {remedy}"


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
    if summary.retried:
        parts.append(f"{summary.retried:,} attempts repeated after failures of a service")
    return f"{summary.output}: {'; '.join(parts)}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def _merge(output: Path, shard: Shard, items: int, settings: dict[str, Any], key: str) -> Summary:
    """Write the output if all items are complete.

    If two shards do this at the same time, they write the same files.
    """
    done, open_items = _lines(output, key)
    if output.exists():  # another shard has written the output
        return _finished(output, key)
    finished = [done[i] for i in sorted(done)]
    counts: Counter[str] = Counter()
    for item in finished:
        counts.update(item["counts"])
    rejected = [record for item in finished for record in item["rejected"]]
    records = [record for item in finished for record in item["records"]]
    meta = {
        "schema_version": SCHEMA_VERSION,
        "code_version": code_version(),
        "fingerprint": key,
        "settings": settings,
        "items": items,
        "records": len(records),
        "counts": dict(sorted(counts.items())),
        "rejected": dict(sorted(Counter(record["reason"] for record in rejected).items())),
    }
    if len(done) == items:
        suffix = f"{shard.number}-of-{shard.of}"
        if rejected:
            _replace(_rejected(output), suffix, _json_lines(rejected))
        else:
            _rejected(output).unlink(missing_ok=True)
        _replace(_meta(output), suffix, [json.dumps(meta, indent=2, default=str) + "\n"])
        _replace(output, suffix, _json_lines(records))  # last: its existence means that the run is complete
        return _finished(output, key)
    totals = Summary(str(output), items, len(records), meta["counts"], meta["rejected"])
    return replace(totals, remaining=items - len(done), open=len(open_items))


def _finished(output: Path, key: str) -> Summary:
    """Return the summary of an existing output, and delete its partial files.

    Raises UserError if the output was made with different settings.
    """
    try:
        meta = json.loads(_meta(output).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        meta = {}
    if meta.get("fingerprint") != key:
        raise UserError(
            f"{output}: already exists and was made with a different recipe; delete it or choose another output"
        )
    for part in _parts(output):
        part.unlink(missing_ok=True)
    return Summary(str(output), meta["items"], meta["records"], meta["counts"], meta.get("rejected", {}))


def _lines(output: Path, key: str) -> tuple[dict[int, dict[str, Any]], set[int]]:
    """Return the completed items of all partial files, and the numbers of the open items.

    A last line without its line feed is ignored.
    """
    done: dict[int, dict[str, Any]] = {}
    tried: set[int] = set()
    for part in _parts(output):
        with suppress(FileNotFoundError):  # another shard has just written the output
            *complete, _ = part.read_bytes().split(b"\n")
            lines = [json.loads(line) for line in complete]
            if lines and lines[0].get("fingerprint") != key:
                raise UserError(f"{part}: was started with a different recipe; delete it or choose another output")
            done |= {line["item"]: line for line in lines[1:] if "item" in line}
            tried |= {line["open"] for line in lines[1:] if "open" in line}
    return done, tried - done.keys()


@contextmanager
def _claimed(partial: Path) -> Iterator[IO[str]]:
    """Open and lock a partial file for appending, and remove an incomplete last line.

    Raises UserError if another process holds the lock.
    """
    with partial.open("ab+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{partial}: another process is writing this file; wait for it or stop it") from None
        except OSError:  # a file system without locks
            pass
        file.seek(0)
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        with io.TextIOWrapper(file, encoding="utf-8") as text:
            yield text


def _parts(output: Path) -> list[Path]:
    """Return the partial files of all shards."""
    name = re.compile(re.escape(output.name) + r"(\.\d+-of-\d+)?\.partial")
    return sorted(path for path in output.parent.iterdir() if name.fullmatch(path.name))


def _meta(output: Path) -> Path:
    return Path(f"{output}.meta.json")


def _rejected(output: Path) -> Path:
    return Path(f"{output}.rejected.jsonl")


def _append(file: IO[str], value: dict[str, Any]) -> None:
    file.write(json.dumps(value, ensure_ascii=False) + "\n")
    file.flush()


def _json_lines(values: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (json.dumps(value, ensure_ascii=False) + "\n" for value in values)


def _replace(path: Path, suffix: str, lines: Iterable[str]) -> None:
    """Write ``path`` atomically; ``suffix`` distinguishes the temporary files of different shards."""
    temporary = path.with_name(f"{path.name}.{suffix}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
