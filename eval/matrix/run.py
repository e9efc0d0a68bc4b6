"""Runs an evaluation matrix: models by strategies by datasets by retrievers.

    DIR/matrix.json              the cells: coordinates, files and summaries
    DIR/tables.md, .tex, .csv    the summaries as tables
    DIR/cells/<id>.jsonl         the trajectories of a cell; also <id>.scores.jsonl and <id>.settings.json
    DIR/questions/               the question sets
    DIR/answers/<key>/           all answers under the same settings, from any question set

A model is started once, and only if a cell lacks answers: a cell with additional questions answers only these, and
an interrupted run continues when the same command is given again.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.eval.matrix.answers import Answers, digest
from rag_train.eval.matrix.cell import Cell, CellName
from rag_train.eval.matrix.store import check_cell, write_cell, write_matrix
from rag_train.formats.instructions import OURS
from rag_train.identity import code
from rag_train.jobs.items import OpenItems
from rag_train.provenance import settings_hash
from rag_train.retrieval.base import Retriever, identity
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.kit import KitConfig, open_kit
from rag_train.strategies.registry import build, parse_strategy


async def run_matrix(
    config: KitConfig,
    models: Mapping[str, str],
    strategies: Sequence[str],
    datasets: Mapping[str, Sequence[Question]],
    retrievers: Mapping[str, Mapping[str, Retriever]],
    output: Path,
    seed: int = 0,
) -> list[Cell]:
    """Answer the missing questions, score all cells and write them to ``output``, which keeps its other cells.

    Args:
        config: settings for all cells; its model and indexes are replaced by ``models`` and ``retrievers``.
        models: model directory, adapter directory or hub name, by name.
        retrievers: results of `rag_train.strategies.kit.open_retrievers`, by name.
        seed: seed of the question sample, recorded in the cells.

    Raises:
        UserError: before any question is asked, if a strategy's requirements are not met, or if a cell would
            overwrite another cell.
        OpenItems: at the end, if questions stay open; their cells are not written.
        UserError: at the end, if all questions of a cell were refused; the cell is not written.
    """
    _check_names(CellName(*parts, seed) for parts in itertools.product(models, strategies, datasets, retrievers))
    done: list[Cell] = []
    failures: dict[CellName, OpenItems] = {}
    refused: dict[CellName, list[Trajectory]] = {}
    for model, place in models.items():
        model_config = replace(config, model=place).located()
        kept = stores(model_config, strategies, retrievers, output)
        names = [CellName(model, s, d, r, seed) for d in datasets for r in retrievers for s in strategies]
        answers = {name: kept[name.strategy, name.retriever] for name in names}
        for name in names:
            check_cell(output, name, datasets[name.dataset], answers[name].settings)
        lacking = [name for name in names if answers[name].missing(datasets[name.dataset])]
        if lacking:
            async with open_kits(model_config, retrievers, lacking) as kits:
                for name in lacking:
                    try:
                        await answers[name].ask(kits[name.retriever], datasets[name.dataset])
                    except OpenItems as error:
                        failures[name] = error
                        if error.gone:  # the other cells would wait for the same service
                            break
        complete = [name for name in names if not answers[name].missing(datasets[name.dataset])]
        trajectories = {name: answers[name].of(datasets[name.dataset]) for name in complete}
        for name in complete:
            if all(trajectory.error is not None for trajectory in trajectories[name]):
                refused[name] = trajectories.pop(name)
        cells: list[Cell] = []
        for name in trajectories:
            questions, cot = datasets[name.dataset], trajectories.get(name._replace(strategy="cot"))
            cells.append(write_cell(output, name, questions, trajectories[name], answers[name].settings, cot=cot))
        write_matrix(output, cells)
        done += cells
        if any(error.gone for error in failures.values()):
            break
    if failures:
        name, error = next(reversed(failures.items()))
        raise OpenItems(f"{name.id}: no scores, because questions are open; {error}", error.gone) from error
    for name, trajectories in refused.items():
        problem = f"all {len(trajectories):,} questions were refused ({trajectories[0].error})"
        remedy = f"correct the cause, delete {answers[name].folder}, and give the command again"
        raise UserError(f"{name.id}: no scores, because {problem}; {remedy}")
    return done


def _check_names(names: Iterable[CellName]) -> None:
    """Raise UserError if two cells would be written to the same files."""
    by_id: dict[str, CellName] = {}
    for name in names:
        other = by_id.setdefault(name.id, name)
        if other != name:
            first, second = next(pair for pair in zip(other, name, strict=True) if pair[0] != pair[1])
            raise UserError(
                f"{first!r} and {second!r} would have the same files, {name.id}; rename one of them (NAME=PLACE)"
            )


def stores(
    config: KitConfig,
    strategies: Sequence[str],
    retrievers: Mapping[str, Mapping[str, Retriever]],
    output: Path,
) -> dict[tuple[str, str], Answers]:
    """Return the stored answers of the model of ``config``, by strategy and retriever."""
    settings = {name: config.identity | {"retrievers": identities(each)} for name, each in retrievers.items()}
    given = config.given or OURS
    return {
        (strategy, name): Answers(output / "answers", strategy, of, given)
        for strategy in strategies
        for name, of in settings.items()
    }


def settings_of_watch(
    config: KitConfig,
    strategies: Sequence[str],
    datasets: Mapping[str, Sequence[Question]],
    retrievers: Mapping[str, Mapping[str, Retriever]],
) -> str:
    """Return a hash of all that the scores of a model depend on, besides the model."""
    settings = {
        "kit": config.of_any_model,
        "strategies": [
            [strategy, code(parse_strategy(strategy)[0], instructions=config.given or OURS)]
            for strategy in strategies
        ],
        "datasets": {name: digest(questions) for name, questions in datasets.items()},
        "retrievers": {name: identities(each) for name, each in retrievers.items()},
    }
    return settings_hash(settings, 16)


def identities(retrievers: Mapping[str, Retriever]) -> list[Any]:
    """Return kind and identity of each retriever, in an order that counts: the first is the main one."""
    return [[kind, identity(retriever)] for kind, retriever in retrievers.items()]


@asynccontextmanager
async def open_kits(
    config: KitConfig, retrievers: Mapping[str, Mapping[str, Retriever]], cells: Iterable[CellName]
) -> AsyncIterator[dict[str, Kit]]:
    """Start the engine of ``config``, and yield its kit with each of the retrievers, by name.

    Raises UserError, before any question is asked, if the requirements of a cell's strategy are not met.
    """
    async with open_kit(config, dict(next(iter(retrievers.values())))) as opened:
        kits = {name: _with_retrievers(opened, by_kind) for name, by_kind in retrievers.items()}
        for name in cells:
            build(name.strategy, kits[name.retriever])
        yield kits


def _with_retrievers(kit: Kit, retrievers: Mapping[str, Retriever]) -> Kit:
    fronts = {kind: AsyncRetriever(retriever) for kind, retriever in retrievers.items()}
    others = {kind: front for kind, front in fronts.items() if kind}
    return replace(kit, retriever=next(iter(fronts.values())), retrievers=others)
