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

Files are read and written in a stream: memory is used for a line and for the place of each completed item.
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
from array import array
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from rag_train.errors import PromptTooLong, Refused, ServiceError, UserError
from rag_train.jobs.files import placed, to_json
from rag_train.jobs.retries import IN_A_ROW, VARIABLE, Patience, patience_seconds
from rag_train.llm.memo import Kept
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
    UserError if it stays open; in both cases, the records in `Kept.records` are kept. ``proven`` says that other
    items were done with the same settings, so that these are not at fault if all items are refused.

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
    with _claimed(shard.partial(output)) as file:
        mine = range(shard.number - 1, len(items), shard.of)
        counts = Counter[str]()
        with _completed(output, key, len(items)) as done:
            for line in done.lines(mine):
                counts.update(line["counts"])
                proven = proven or "refused" not in line
        todo = sum(i not in done for i in mine)
        if not file.tell():
            _append(file, _header(key) | {"items": len(items)})
        with progress(label, len(mine), len(mine) - todo) as advance:
            workers = min(in_flight, todo)
            patience = Patience(patience_seconds(), workers, lambda n, error: advance(0, _waiting_note(n, error)))
            queue = (i for i in mine if i not in done)
            failed: list[UserError] = []
            refusals = _Refusals(file, max(workers, IN_A_ROW), proven)

            async def process(i: int) -> None:
                so_far = Kept()
                try:
                    outcome = await patience.complete(partial(work, items[i]), so_far)
                except UNFIT as error:
                    refusals.add(i, items[i], error, so_far)
                except UserError as error:
                    failed.append(error)
                    _append(file, _open_line(i, error, so_far))
                    return
                else:
                    refusals.write()
                    outcome = replace(outcome, counts=outcome.counts | _without_passages(so_far))
                    _append(file, _completed_line(i, outcome))
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


def _header(key: str) -> dict[str, Any]:
    """Return what the first line of a partial file begins with; the number of items, for readers, follows it."""
    return {"fingerprint": key}


def _completed_line(i: int, outcome: Outcome) -> dict[str, Any]:
    return {
        "item": i,
        "records": [record.model_dump(mode="json") for record in outcome.records],
        "counts": outcome.counts,
        "rejected": [rejected.model_dump(mode="json") for rejected in outcome.rejected],
    }


def _refused_line(i: int, item: BaseModel, error: ValueError, so_far: Kept) -> dict[str, Any]:
    """Return the line of an item that is refused; the cost of its calls is counted."""
    rejected = Rejected(id=getattr(item, "id", ""), reason=reason_of(error), text=str(error))
    counts = (cost(so_far.calls) if so_far.calls else {}) | _without_passages(so_far)
    return _completed_line(i, Outcome(so_far.records, counts, [rejected])) | {"refused": rejected.reason}


def _open_line(i: int, error: Exception, so_far: Kept) -> dict[str, Any]:
    records = [record.model_dump(mode="json") for record in so_far.records]
    return {"open": i, "error": str(error), "counts": cost(so_far.calls), "records": records}


def reason_of(error: ValueError) -> str:
    """Return the reason by which an item with one of the errors `UNFIT` is counted."""
    return error.reason if isinstance(error, Refused) else "invalid"


def _without_passages(so_far: Kept) -> dict[str, int]:
    return {NO_PASSAGES: 1} if so_far.queries and not so_far.passages else {}


class _Refusals:
    """Writes the lines of refused items, but holds the first ones back until an item is done.

    Args:
        file: the partial file.
        most: number of refusals for one reason, and of no item done, after which the run ends.
        proven: whether an item was done before.
    """

    def __init__(self, file: IO[str], most: int, proven: bool):
        self._file = file
        self._most = most
        self._proven = proven
        self._held: list[tuple[int, BaseModel, ValueError, Kept]] = []

    @property
    def too_many(self) -> bool:
        """Whether all of the first items were refused for one reason."""
        return len(self._held) >= self._most

    def add(self, i: int, item: BaseModel, error: ValueError, so_far: Kept) -> None:
        """Note that an item was refused. What is too long or invalid concerns the item, and is written at once."""
        if self._proven or not isinstance(error, Refused) or isinstance(error, PromptTooLong):
            _append(self._file, _refused_line(i, item, error, so_far))
            return
        self._held.append((i, item, error, so_far))
        if self.too_many and len({reason_of(error) for _, _, error, _ in self._held}) > 1:
            self.write()

    def write(self) -> None:
        """Write the refusals that were held back: an item was done, so that they concern their items."""
        self._proven = True
        for held in self._held:
            _append(self._file, _refused_line(*held))
        self._held = []

    def end(self, failed: Sequence[UserError]) -> ValueError | None:
        """Write the refusals that are still held back.

        If they have one reason and no item was done, the items stay open, and one of their errors is returned.
        """
        if len({reason_of(error) for _, _, error, _ in self._held}) > 1:
            self.write()
        for i, _, error, so_far in self._held:
            _append(self._file, _open_line(i, error, so_far))
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


def _merge(output: Path, shard: Shard, items: int, settings: dict[str, Any], key: str) -> Summary:
    """Write the output if all items are complete.

    If two shards do this at the same time, they write the same files.
    """
    suffix = f"{shard.number}-of-{shard.of}"
    with _completed(output, key, items) as done:
        if output.exists():  # another shard has written the output
            return _finished(output, key)
        totals = _Totals()
        lines = totals.counting(done.lines(range(items)))
        if remaining := items - done.count:
            deque(lines, maxlen=0)
            summary = Summary(str(output), items, totals.records, dict(totals.counts), dict(totals.rejected))
            return replace(summary, remaining=remaining, open=done.open)
        with _new(output, suffix) as records, _new(_rejected(output), suffix) as rejected:
            for line in lines:
                records.writelines(map(_json_line, line["records"]))
                rejected.writelines(map(_json_line, line["rejected"]))
    meta = {
        "schema_version": SCHEMA_VERSION,
        "code_version": code_version(),
        "fingerprint": key,
        "settings": settings,
        "items": items,
        "records": totals.records,
        "counts": dict(sorted(totals.counts.items())),
        "rejected": dict(sorted(totals.rejected.items())),
    }
    with _new(sidecar(output), suffix) as file:
        file.write(json.dumps(meta, indent=2, default=str) + "\n")
    if totals.rejected:
        _replace(_rejected(output), suffix)
    else:
        _temporary(_rejected(output), suffix).unlink()
        _rejected(output).unlink(missing_ok=True)
    _replace(sidecar(output), suffix)
    _replace(output, suffix)  # last: its existence means that the run is complete
    return _finished(output, key)


class _Totals:
    """Totals over completed items."""

    def __init__(self) -> None:
        self.records = 0
        self.counts: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()

    def counting(self, lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Pass the items' lines on, and count them."""
        for line in lines:
            self.records += len(line["records"])
            self.counts.update(line["counts"])
            self.rejected.update(record["reason"] for record in line["rejected"])
            yield line


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


class _Completed:
    """The completed items in the partial files of all shards."""

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
                yield json.loads(file.readline())

    def _scan(self, number: int, file: IO[bytes], key: str) -> None:
        """Note the items of a file. A last line without its line feed is ignored."""
        at = 0
        for line in file:
            if not line.endswith(b"\n"):
                return
            if at == 0 and not line.startswith(_json_line(_header(key)).encode()[: -len("}\n")]):
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


_ITEM = re.compile(rb'\{"(item|open)": (\d+),')
"""Begin of the lines that `_completed_line` and `_open_line` describe."""


@contextmanager
def _completed(output: Path, key: str, items: int) -> Iterator[_Completed]:
    """Open the partial files of all shards, which another shard may delete in the meantime."""
    with ExitStack() as stack:
        files = []
        for part in partial_files(output):
            with suppress(FileNotFoundError):  # another shard has just written the output
                files.append(stack.enter_context(part.open("rb")))
        yield _Completed(files, key, items)


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
        file.truncate(_end_of_last_line(file))
        file.seek(0, os.SEEK_END)
        text = io.TextIOWrapper(file, encoding="utf-8")
        try:
            yield text
        finally:
            with placed(partial):
                text.close()


def _end_of_last_line(file: IO[bytes], block: int = 2**16) -> int:
    """Return the offset behind the last line feed; the file is read backwards, a block at a time."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - block)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


PARTIAL = re.compile(r"(.+?)(\.\d+-of-\d+)?\.partial")
"""Name of a partial file; its first group is the name of the output."""
SIDECAR = ".meta.json"
REJECTED = ".rejected.jsonl"


def partial_files(output: Path) -> list[Path]:
    """Return the partial files of all shards."""
    matches = ((path, PARTIAL.fullmatch(path.name)) for path in output.parent.iterdir())
    return sorted(path for path, match in matches if match and match[1] == output.name)


def sidecar(output: Path) -> Path:
    """Return the path of the file with the settings and the totals of ``output``."""
    return Path(f"{output}{SIDECAR}")


def _rejected(output: Path) -> Path:
    return Path(f"{output}{REJECTED}")


def _append(file: IO[str], value: dict[str, Any]) -> None:
    with placed(file.name):
        file.write(_json_line(value))
        file.flush()


def _json_line(value: dict[str, Any]) -> str:
    return to_json(value) + "\n"


def _temporary(path: Path, suffix: str) -> Path:
    """Return the path under which ``path`` is written; ``suffix`` distinguishes the files of different shards."""
    return path.with_name(f"{path.name}.{suffix}.tmp")


@contextmanager
def _new(path: Path, suffix: str) -> Iterator[IO[str]]:
    """Open the next contents of ``path``, which `_replace` puts in its place."""
    temporary = _temporary(path, suffix)
    try:
        with placed(path), temporary.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)  # half a file would fill the disk that is full already
        raise


def _replace(path: Path, suffix: str) -> None:
    _temporary(path, suffix).rename(path)
