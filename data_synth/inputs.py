"""Inputs of a synthesis run: its questions, and the recipe settings that identify its output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.questions.load import at_most, load_questions
from rag_train.schema import Question


def read_questions(files: Iterable[Path], sample: int | None, seed: int) -> list[Question]:
    """Read question files; of each file, draw ``sample`` questions at random, or take all if it is None.

    Raises UserError if a file cannot be read.
    """
    return [question for path in files for question in at_most(load_questions(path), sample, seed)]


def check_unique_ids(questions: Sequence[Question]) -> None:
    """Raise UserError if two questions have the same id."""
    counts = Counter(question.id for question in questions)
    if repeated := next((id for id, count in counts.items() if count > 1), None):
        raise UserError(f"questions: id {repeated[:80]!r} occurs more than once; give each question its own id")


def identifying_settings(recipe: Any) -> dict[str, Any]:
    """Return a recipe's keys for the sidecar, without the engine's addresses and time limit.

    Those two may change between runs that write the same output.
    """
    settings = asdict(recipe)
    if settings.get("model"):
        settings["engine"] = {k: v for k, v in settings["engine"].items() if k not in ("urls", "timeout")}
    return settings
