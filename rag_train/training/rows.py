"""Rows of token ids on disk: tokenised once per machine, memory-mapped and shared by its processes.

The files are in ``~/.cache/rag-train/rows`` (the environment variable RAG_TRAIN_CACHE replaces
``~/.cache/rag-train``), in a directory for each combination of records, tokenizer, settings and code that makes the
rows. A directory can be deleted at any time, even while a run reads it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, concatenate_datasets

from rag_train.errors import UserError
from rag_train.identity import code
from rag_train.jobs.files import CACHE_VARIABLE, cache_directory, locked, new_file, placed_records
from rag_train.progress import progress, say
from rag_train.schema import Record

R = TypeVar("R", bound=Record)
Row = dict[str, list[int]]

PART = 2048
"""Records of a file. A killed run repeats at most one file."""
TOKENS = pa.list_(pa.int32())
"""Type of a column of token ids."""


def stored_rows(
    path: Path,
    kind: type[R],
    encode: Callable[[str, R], dict[str, Any] | str],
    columns: Mapping[str, pa.DataType],
    settings: Mapping[str, Any],
    remedy: str,
) -> tuple[Dataset, Counter[str]]:
    """Return the rows that ``encode`` makes of the records in ``path``, and the numbers of records without a row.

    ``encode`` gets a record's place and the record, and returns a row or the reason why there is none. The rows are
    made again if the contents of ``path``, the ``settings`` or the code of ``encode`` have changed. One process of
    the machine makes them; the others wait for it. After a kill, the next process continues.

    Raises UserError if a record is not valid (see `placed_records`) or the cache directory cannot be used.
    """
    digest, lines = _contents(path, remedy)
    key = json.dumps([code(encode, stored_rows), digest, settings], sort_keys=True)
    folder = cache_directory() / "rows" / hashlib.sha256(key.encode()).hexdigest()[:16]
    parts = [folder / f"{number:06}.arrow" for number in range(max(1, math.ceil(lines / PART)))]
    # A barrier of torch.distributed would give up waiting for the process that makes them after some minutes.
    with _user_errors(folder), locked(folder / "lock"):
        missing = [part for part in parts if not part.exists()]
        if missing:
            done = PART * (len(parts) - len(missing))
            records = islice(placed_records(path, kind, remedy), done, None)
            with progress("tokenising", lines, done) as advance:
                for part in missing:
                    _write(part, _encoded(islice(records, PART), encode, advance), columns)
            size = sum(part.stat().st_size for part in parts)
            say(f"token ids of {path}: {size / 2**20:,.1f} MiB in {folder}")
        rows = concatenate_datasets([Dataset.from_file(str(part)) for part in parts])
        return rows, sum(map(_refused, parts), Counter())


def _contents(path: Path, remedy: str) -> tuple[str, int]:
    """Return the SHA-256 of a file and the number of its lines."""
    digest, lines, block = hashlib.sha256(), 0, b""
    try:
        with path.open("rb") as file:
            while more := file.read(2**20):
                block = more
                digest.update(block)
                lines += block.count(b"\n")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {remedy}") from error
    return digest.hexdigest(), lines + (block[-1:] not in (b"", b"\n"))


@contextmanager
def _user_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = error.strerror or str(error)
        raise UserError(
            f"{folder}: {problem}; free space, or set {CACHE_VARIABLE} to a directory on another local disk"
        ) from error
    except pa.ArrowInvalid as error:
        raise UserError(f"{folder}: damaged ({str(error).partition(chr(10))[0]}); delete it") from error


def _encoded(
    records: Iterator[tuple[str, R]],
    encode: Callable[[str, R], dict[str, Any] | str],
    advance: Callable[[], None],
) -> Iterator[dict[str, Any] | str]:
    for place, record in records:
        yield encode(place, record)
        advance()


def _write(part: Path, encoded: Iterator[dict[str, Any] | str], columns: Mapping[str, pa.DataType]) -> None:
    """Write the rows to ``part`` atomically, with the numbers of records without a row."""
    values: dict[str, list[Any]] = {name: [] for name in columns}
    refused = Counter[str]()
    for row in encoded:
        if isinstance(row, str):
            refused[row] += 1
            continue
        for name, kind in columns.items():
            values[name].append(np.array(row[name], np.int32) if kind == TOKENS else row[name])
    schema = pa.schema(list(columns.items()), metadata={"refused": json.dumps(refused)})
    with new_file(part, "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_table(pa.table(values, schema))


def _refused(part: Path) -> Counter[str]:
    with pa.ipc.open_stream(part) as stream:
        return Counter(json.loads(stream.schema.metadata[b"refused"]))


class TokenColumn(Sequence[np.ndarray]):
    """A column of token ids, each an array of int32 that is read from the files when it is asked for."""

    def __init__(self, rows: Dataset, name: str):
        chunks = rows.data.column(name).chunks
        self._chunks = [(chunk.offsets.to_numpy(), chunk.values.to_numpy()) for chunk in chunks]
        self._ends = np.cumsum([len(chunk) for chunk in chunks])
        # The rows of `Dataset.select` are numbers of rows of the same table.
        self._numbers = None if rows._indices is None else rows._indices.column(0).to_numpy()
        self._count = len(rows)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> np.ndarray:  # pyrefly: ignore[bad-override]
        if not 0 <= i < self._count:
            raise IndexError(i)
        number = i if self._numbers is None else int(self._numbers[i])
        chunk = int(np.searchsorted(self._ends, number, "right"))
        offsets, values = self._chunks[chunk]
        at = number - int(self._ends[chunk - 1] if chunk else 0)
        return values[offsets[at] : offsets[at + 1]]

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each row."""
        lengths = np.concatenate([np.diff(offsets) for offsets, _ in self._chunks])
        return lengths if self._numbers is None else lengths[self._numbers]


def largest_token(rows: Dataset) -> int:
    """Return the largest token id in the files that ``rows`` come from."""
    chunks = (chunk for name in rows.column_names for chunk in rows.data.column(name).chunks)
    return max(int(chunk.values.to_numpy().max(initial=0)) for chunk in chunks)


class LazyRows(torch.utils.data.Dataset):
    """A dataset of ``count`` rows, of which ``row`` computes row number n each time that it is read."""

    def __init__(self, count: int, row: Callable[[int], dict[str, Any]]):
        self._count = count
        self._row = row

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._row(index)
