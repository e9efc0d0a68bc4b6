"""Inputs of a synthesis run: its questions, and the recipe settings that identify its output."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from rag_train.errors import UserError, masked
from rag_train.formats.instructions import OURS
from rag_train.identity import code, files, model_or_service
from rag_train.llm.engines import EngineConfig
from rag_train.llm.engines import identity as engine_identity
from rag_train.provenance import weights_sha256
from rag_train.questions.load import StoredQuestions, at_most, each_question
from rag_train.strategies.kit import KitConfig


def read_questions(
    files: Iterable[Path], sample: int | None, seed: int, earlier: Sequence[int] = ()
) -> StoredQuestions:
    """Read question files; of each file, draw ``sample`` questions at random, or take all if it is None.

    ``earlier`` are the sizes of samples that were drawn before with the same seed; their questions are left out.

    Raises UserError if a file cannot be read, is given twice, or has no question left.
    """
    return StoredQuestions(chain.from_iterable(read_files(files, sample, seed, earlier).values()))


def read_files(
    files: Iterable[Path], sample: int | None, seed: int, earlier: Sequence[int] = ()
) -> dict[Path, StoredQuestions]:
    """Read question files as `read_questions` does, and return the questions of each.

    An id that occurs in several files, such as FlashRAG's ``train_0``, gets the name of its file. Questions that
    are marked as unanswerable are left out, since nothing can be taught from them.
    """
    by_file: dict[Path, StoredQuestions] = {}
    for path in files:
        if path in by_file:
            raise UserError(f"{path}: the file is given twice; name it once")
        by_file[path] = _left(path, StoredQuestions(each_question(path, unanswerable="skip")), seed, earlier)
        if sample is not None and sample < len(by_file[path]):
            by_file[path] = StoredQuestions(at_most(by_file[path], sample, seed))
    counts = Counter(question.id for questions in by_file.values() for question in questions)
    shared = {id for id, count in counts.items() if count > 1}
    if not shared:
        return by_file
    folder = os.path.commonpath([path.absolute().parent for path in by_file])
    names = {path: os.path.relpath(path.absolute(), folder) for path in by_file}
    return {
        path: StoredQuestions(
            q.model_copy(update={"id": f"{names[path]}:{q.id}"}) if q.id in shared else q for q in questions
        )
        for path, questions in by_file.items()
    }


def _left(path: Path, questions: StoredQuestions, seed: int, earlier: Sequence[int]) -> StoredQuestions:
    """Return the questions of ``path`` that are in none of the earlier samples, each drawn from what was left."""
    for size in earlier:
        taken = {question.id for question in at_most(questions, size, seed)}
        questions = StoredQuestions(question for question in questions if question.id not in taken)
    if not questions:
        sizes = ", ".join(map(str, earlier))
        raise UserError(f"{path}: no question is left after the samples {sizes}; draw smaller samples")
    return questions


def check_unique_ids(items: Sequence[Any]) -> None:
    """Raise UserError if two items, such as questions, have the same id."""
    counts = Counter(item.id for item in items)
    if repeated := next((id for id, count in counts.items() if count > 1), None):
        raise UserError(f"questions: id {repeated[:80]!r} occurs more than once; give each question its own id")


def identifying_settings(recipe: Any, retriever: Any, *makers: Any) -> dict[str, Any]:
    """Return all that a recipe's output depends on besides its questions, for the sidecar.

    ``retriever`` is the identity of the opened retriever. ``makers`` are the functions and classes that make the
    records, whose code and prompts count. Raises UserError if a file of held-out questions cannot be read.
    """
    settings = _without_secrets(asdict(recipe))
    settings |= {"retriever": retriever, "code": code(*makers, instructions=recipe.given or OURS)}
    del settings["prompts"]  # the code's identity has their contents
    if settings.get("held_out"):
        settings["held_out_contents"] = files(recipe.held_out)
    if settings.get("model"):
        settings |= {"model_sha256": weights_sha256(recipe.model)} | on_any_server(recipe.model, recipe.engine)
    for name in ("reranker", "linker"):
        if place := settings.get(name):
            settings[name] = model_or_service(place)
    return settings


def on_any_server(model: str, engine: EngineConfig) -> dict[str, Any]:
    """Return the identity of ``model`` and its engine without addresses.

    Each shard may have a server of its own, and a run may continue with a server elsewhere.
    """
    known = engine_identity(model, engine)
    settings = {name: value for name, value in known["engine"].items() if name != "urls"}
    return {"model_identity": known["model"], "engine": settings}


def identity_of_roles(models: KitConfig) -> dict[str, Any]:
    """Return what a recipe's output depends on of the models by role, for `Method.settings`."""
    roles = sorted(models.roles.items())
    return {"roles": {role: on_any_server(model.place, model.engine) for role, model in roles}}


def _without_secrets(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_secrets(part) for key, part in value.items()}
        case list() | tuple():
            return [_without_secrets(part) for part in value]
        case str():
            return masked(value)
    return value
