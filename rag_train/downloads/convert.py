"""Conversion of downloaded files to the files that `load_questions` and `rag-train index` read."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rag_train.jobs.files import placed

WORDS = 100
"""Words of a passage that an article is cut into, as in DPR's Wikipedia."""


def copied(parts: list[Path], target: Path) -> None:
    """Copy the only part."""
    shutil.copyfile(parts[0], target)


def from_parquet(parts: list[Path], target: Path, json_columns: Sequence[str] = ()) -> None:
    """Write the rows of Parquet files as JSON Lines; ``json_columns`` hold JSON as text, and become its value."""
    _write_rows(target, (_decoded(row, json_columns) for part in parts for row in _parquet_rows(part)))


def _parquet_rows(part: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(part) as file:
        for batch in file.iter_batches(1000):
            yield from batch.to_pylist()


def _decoded(row: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    return row | {name: json.loads(row[name]) for name in columns}


def unzipped(parts: list[Path], target: Path) -> None:
    """Write the JSON Lines file of an archive. Names in the archive are not used as paths."""
    with zipfile.ZipFile(parts[0]) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jsonl") and "__MACOSX" not in name]
        if len(names) != 1:
            raise ValueError(f"{len(names)} JSON Lines files in the archive, not one")
        with archive.open(names[0]) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, 2**20)


def articles(parts: list[Path], target: Path) -> None:
    """Write MultiHop-RAG's articles as passages of at most `WORDS` words; the id is ``article/passage``."""
    rows = json.loads(parts[0].read_text(encoding="utf-8"))
    _write_rows(target, (passage for number, row in enumerate(rows) for passage in _passages(number, row)))


def _passages(number: int, row: dict[str, Any]) -> Iterator[dict[str, str]]:
    words = row["body"].split()
    for part, start in enumerate(range(0, len(words), WORDS)):
        text = " ".join(words[start : start + WORDS])
        yield {"id": f"{number}/{part}", "title": row["title"], "text": text}


def _write_rows(target: Path, rows: Iterable[dict[str, Any]]) -> None:
    with placed(target), target.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
