"""The results of the demo: what its page shows, and what ``demo.json`` holds."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, FiniteFloat, NonNegativeFloat, ValidationError, model_validator

from rag_train.errors import UserError, problem_in
from rag_train.eval.demo.claims import Claim
from rag_train.eval.metrics.summary import RunSummary
from rag_train.jobs.files import write_text
from rag_train.schema import Question, Record, Trajectory


class Series(Record):
    """A line of a plot: equally many finite x and y."""

    name: str
    x: list[FiniteFloat]
    y: list[FiniteFloat]

    @model_validator(mode="after")
    def _same_length(self) -> Series:
        if len(self.x) != len(self.y):
            raise ValueError(f"series {self.name!r} has {len(self.x)} x values and {len(self.y)} y values")
        return self


class Curve(Record):
    """A plot of training, with a line per series."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]


class Timing(Record):
    """Duration of a part of the run."""

    part: str
    seconds: NonNegativeFloat


class Example(Record):
    """A question with the trajectories of several runs."""

    question: Question
    trajectories: dict[str, Trajectory]
    """Trajectories by the name of the run (`RunSummary.name`)."""
    known: dict[str, bool] = Field(default_factory=dict)
    """Whether the model knows the fact, for subqueries that are not in the question's decomposition."""


class Provenance(Record):
    """Everything needed to reproduce the run."""

    machine: str
    code_version: str
    versions: dict[str, str]
    seeds: list[int]
    recipe: str


class ReportData(Record):
    """All data of the page; ``runs`` has a summary per strategy, stage and seed."""

    title: str
    summary: str
    claims: list[Claim]
    runs: list[RunSummary]
    curves: list[Curve]
    timings: list[Timing]
    peak_gib: float | None = None
    """Peak memory of the run with its engines and trainings; None in older files."""
    examples: list[Example]
    provenance: Provenance


def save_results(path: Path, results: ReportData) -> None:
    """Write ``results`` to ``path`` as JSON."""
    write_text(path, results.model_dump_json(indent=1) + "\n")


def load_results(path: Path) -> ReportData:
    """Read a file of `save_results`. Raises UserError if it is missing or malformed."""
    try:
        return ReportData.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give the demo.json that `rag-train demo` wrote") from error
    except ValidationError as error:
        raise UserError(f"{path}: {problem_in(error)}; run `rag-train demo` again") from error
