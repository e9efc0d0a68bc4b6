"""The cells of an evaluation matrix, and the file that lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from rag_train.errors import UserError
from rag_train.eval.metrics.summary import RunSummary
from rag_train.schema import Record

SCHEMA_VERSION = 2
MATRIX = "matrix.json"
EVALUATIONS = "evaluations.jsonl"
"""Name of the file in a training run with the evaluations of its checkpoints."""


class CellName(NamedTuple):
    """The coordinates of a cell: a model with a strategy and a retriever on a dataset."""

    model: str
    strategy: str
    dataset: str
    retriever: str
    seed: int
    """Seed of the question sample."""

    @property
    def id(self) -> str:
        """The parts joined by slashes; characters that are unsafe in file names are replaced."""
        return "/".join(map(file_name, self))


class Cell(Record):
    """A `CellName`, the cell's summary, and its files relative to the matrix's directory."""

    id: str
    model: str
    strategy: str
    dataset: str
    retriever: str
    seed: int
    trajectories: str
    questions: str
    summary: RunSummary
    scores: str

    @property
    def name(self) -> CellName:
        return CellName(self.model, self.strategy, self.dataset, self.retriever, self.seed)


class Matrix(Record):
    """The contents of ``matrix.json``."""

    schema_version: Literal[2] = SCHEMA_VERSION
    cells: list[Cell] = Field(default_factory=list)


def load_matrix(directory: Path) -> Matrix:
    """Read the list of cells. Raises UserError if the file is missing or has another schema version."""
    path = directory / MATRIX
    try:
        return Matrix.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give the directory that `rag-train eval` wrote") from error
    except ValueError as error:
        raise UserError(
            f"{path}: not an evaluation matrix of schema version {SCHEMA_VERSION}; run `rag-train eval` again"
        ) from error


def file_name(part: str | int) -> str:
    """Return ``part`` with unsafe characters replaced by underscores and without leading dots; "none" if empty."""
    return re.sub(r"[^\w.,=+-]+", "_", str(part)).lstrip(".") or "none"
