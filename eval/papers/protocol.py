"""The protocol of the mini world's measurements, and the log of all runs on its test seeds.

The protocol fixes the rules of judgement before the test seeds are run: ``protocol.yaml``, which must be committed.
The log, ``runs.jsonl``, also has the runs that failed or were killed: a run is entered when it starts.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, PositiveFloat, ValidationError, model_validator

from rag_train.errors import UserError
from rag_train.provenance import changed_files, code_version
from rag_train.schema import Record

FOLDER = Path(__file__).resolve().parent
PROTOCOL = FOLDER / "protocol.yaml"
LOG = FOLDER / "runs.jsonl"


class Seeds(Record):
    """Seeds for choices, and seeds for results."""

    dev: list[int] = Field(min_length=1)
    test: list[int] = Field(min_length=6)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        both = [*self.dev, *self.test]
        if len(set(both)) < len(both):
            raise ValueError("a seed occurs twice; dev and test seeds must differ")
        return self


class Protocol(Record):
    """The contents of ``protocol.yaml``, which explains its fields."""

    unit: Literal["seed"]
    level: float = Field(gt=0, lt=0.5)
    family: Literal["paper"]
    seeds: Seeds
    settings: dict[str, str | int]
    margins: dict[str, PositiveFloat]
    left_out: dict[str, str]

    def are_test_seeds(self, seeds: Sequence[int], settings: dict[str, Any]) -> bool:
        """Return whether a run is on the test seeds.

        Raises UserError for test seeds together with others, and for settings that are not the protocol's.
        """
        if not set(seeds) & set(self.seeds.test):
            return False
        if other := [seed for seed in seeds if seed not in self.seeds.test]:
            raise UserError(f"--seeds {other[0]}: not one of the test seeds {self.seeds.test}, which are run alone")
        require_settings(PROTOCOL, self.settings, settings)
        return True


def load_protocol(path: Path = PROTOCOL) -> Protocol:
    """Read the protocol. Raises UserError if it is malformed."""
    try:
        return Protocol.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValidationError) as error:
        raise UserError(f"{path}: {' '.join(str(error).split())}; correct the protocol") from error


def seeds_of(path: Path, split: str, chosen: Sequence[int] | None = None) -> list[int]:
    """Return the seeds of a split in the protocol of a benchmark, or the ``chosen`` ones of them.

    A split is a key of the file: dev, test, and others that the file explains.

    Raises UserError for a chosen seed that the split does not have.
    """
    seeds = yaml.safe_load(path.read_text(encoding="utf-8"))[split]
    if wrong := [seed for seed in chosen or [] if seed not in seeds]:
        raise UserError(f"--seeds {wrong[0]}: not a {split} seed of {path.name}; give some of {seeds}")
    return list(chosen or seeds)


def require_settings(path: Path, chosen: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise UserError unless ``settings`` has the values that the protocol ``path`` has ``chosen``."""
    for name, value in chosen.items():
        if settings.get(name) != value:
            raise UserError(
                f"{path.name}: test seeds are run with {name}={value}, not {settings.get(name)}; choose settings "
                f"on dev seeds and commit them in the protocol"
            )


def committed_hash(path: Path) -> str:
    """Return the start of the protocol's SHA-256.

    Raises UserError unless the file and all other code of its git checkout are as in the last commit.
    """
    shown = subprocess.run(["git", "show", f"HEAD:./{path.name}"], cwd=path.parent, capture_output=True)
    if shown.returncode:
        raise UserError(f"{path}: not committed; commit the protocol before the test seeds are run")
    if shown.stdout != path.read_bytes():
        raise UserError(f"{path}: differs from the committed version; commit it before the test seeds are run")
    if changed := changed_files(path.parent):
        raise UserError(f"{changed[0]}: changed since the last commit; commit it before the test seeds are run")
    return hashlib.sha256(shown.stdout).hexdigest()[:12]


class LoggedRun(Record):
    """A line of the log."""

    date: str
    code_version: str
    protocol: str
    """Start of the SHA-256 of the protocol; empty for runs before there was a protocol."""
    what: str
    seeds: list[int]
    outcome: str


@dataclass
class Outcome:
    """What a run will enter into the log at its end."""

    text: str = "finished"


@contextmanager
def logged(what: str, seeds: Sequence[int], protocol: Path = PROTOCOL, log: Path = LOG) -> Iterator[Outcome]:
    """Enter a run on the test seeds into the log at its start, and again with its outcome or its error.

    Raises UserError if the protocol or other code is not committed.
    """
    protocol_hash, outcome = committed_hash(protocol), Outcome()

    def enter(text: str) -> None:
        run = LoggedRun(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            code_version=code_version(),
            protocol=protocol_hash,
            what=what,
            seeds=list(seeds),
            outcome=text,
        )
        with log.open("a", encoding="utf-8") as file:
            file.write(run.model_dump_json() + "\n")

    enter("started")
    try:
        yield outcome
    except BaseException as error:
        enter(f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        raise
    enter(outcome.text)
