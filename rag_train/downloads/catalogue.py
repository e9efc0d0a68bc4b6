"""The data sets of `rag-train data get` (``catalogue.yaml``)."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import yaml
from pydantic import TypeAdapter

from rag_train.downloads.convert import articles, copied, from_parquet, unzipped
from rag_train.errors import UserError

How = Literal["copy", "parquet", "parquet with JSON", "unzip", "articles"]
CONVERSIONS: dict[How, Callable[[list[Path], Path], None]] = {
    "copy": copied,
    "parquet": from_parquet,
    "parquet with JSON": partial(from_parquet, json_columns=("context", "supporting_facts", "evidences")),
    "unzip": unzipped,
    "articles": articles,
}


@dataclass(frozen=True)
class File:
    """A file to write: its name, the files of the repository that it is made from, and how."""

    name: str
    how: How
    parts: tuple[str, ...]


@dataclass(frozen=True)
class DataSet:
    """A data set in a repository of the Hub.

    Attributes:
        revision: commit of the repository.
        size: bytes to download; None if not known.
    """

    title: str
    repository: str
    revision: str
    licence: str
    size: int | None
    files: tuple[File, ...]


CATALOGUE = TypeAdapter(dict[str, DataSet]).validate_python(
    yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
)


def find(name: str) -> DataSet:
    """Return the data set ``name``. Raises UserError, with names that are near, if there is none."""
    if known := CATALOGUE.get(name):
        return known
    near = difflib.get_close_matches(name.lower(), CATALOGUE, n=2)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"the data sets are {', '.join(CATALOGUE)}"
    raise UserError(f"unknown data set {name[:80]!r}; {remedy}")
