"""The estimate of an evaluation or a reproduction (`--dry-run`), from a few questions of each cell.

The questions are answered in a temporary directory, so that nothing is kept but the engine's cache. Only cells that
lack answers are asked. The most calls and searches of a question are the strategies' stated bounds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rag_train.eval.matrix.answers import Answers
from rag_train.eval.matrix.cell import CellName
from rag_train.eval.matrix.run import open_kits, stores
from rag_train.jobs.items import cost
from rag_train.questions.load import at_most
from rag_train.retrieval.base import Retriever
from rag_train.schema import Question
from rag_train.strategies.base import STRATEGIES, Bound, Kit
from rag_train.strategies.kit import KitConfig
from rag_train.strategies.registry import BUDGET, parse_strategy
from rag_train.table import NOTHING, Table

SHARE, LEAST = 100, 4
"""One question in `SHARE` is asked for the estimate, and at least `LEAST` questions."""


@dataclass(frozen=True)
class CellEstimate:
    """What the missing answers of a cell would take.

    Attributes:
        questions: number of questions without an answer.
        most: the most calls and searches of a question, if they are stated.
        asked: number of questions that were asked, with the sums of ``calls``, ``searches``, tokens, ``seconds``
            and the ``size`` of their answers in bytes.
    """

    cell: str
    questions: int
    most: Bound | None
    asked: int = 0
    calls: int = 0
    searches: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    size: int = 0

    def scaled(self, value: float) -> float | None:
        """Return what a sum over the questions that were asked is for all; None if none was asked."""
        return value * self.questions / self.asked if self.asked else None

    def figures(self, prices: tuple[float, float]) -> dict[str, float | None]:
        """Return the numbers of the table by column; ``prices`` are those of a million tokens read and written."""
        read, written = self.prompt_tokens, self.completion_tokens
        return {
            "questions": self.questions,
            "calls": self.scaled(self.calls),
            "calls at most": self.most.calls * self.questions if self.most else None,
            "searches": self.scaled(self.searches),
            "searches at most": self.most.retrievals * self.questions if self.most else None,
            "tokens read": self.scaled(read),
            "tokens written": self.scaled(written),
            "minutes": self.scaled(self.seconds / 60),
            "MiB": self.scaled(self.size / 2**20),
            "dollars": self.scaled((read * prices[0] + written * prices[1]) / 1e6),
        }


async def estimate_matrix(
    config: KitConfig,
    models: Mapping[str, str],
    strategies: Sequence[str],
    datasets: Mapping[str, Sequence[Question]],
    retrievers: Mapping[str, Mapping[str, Retriever]],
    output: Path,
    seed: int = 0,
) -> list[CellEstimate]:
    """Ask a few of the questions that `run_matrix` would ask, and estimate each cell that lacks answers.

    Raises UserError if a strategy's requirements are not met or a service fails.
    """
    found: list[CellEstimate] = []
    for model, place in models.items():
        model_config = replace(config, model=place).located()
        kept = stores(model_config, strategies, retrievers, output)
        lacking = {
            CellName(model, s, d, r, seed): missing
            for d in datasets
            for s, r in kept
            if (missing := kept[s, r].missing(datasets[d]))
        }
        if not lacking:
            continue
        async with open_kits(model_config, retrievers, lacking) as kits:
            for name, missing in lacking.items():
                found.append(await estimate_cell(name.id, name.strategy, kits[name.retriever], missing, seed))
    return found


async def estimate_cell(cell: str, strategy: str, kit: Kit, missing: Sequence[Question], seed: int) -> CellEstimate:
    """Ask a few of the ``missing`` questions, and estimate all."""
    few = at_most(missing, max(LEAST, len(missing) // SHARE), seed)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        answered = await Answers(Path(folder), strategy, {}).ask(kit, few)
        seconds = time.perf_counter() - start
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    sums = cost(call for trajectory in answered for call in trajectory.calls)
    return CellEstimate(
        cell=cell,
        questions=len(missing),
        most=bound(strategy, kit.passages),
        asked=len(answered),
        calls=sums["engine_calls"],
        searches=sum(trajectory.retrievals for trajectory in answered),
        prompt_tokens=sums["prompt_tokens"],
        completion_tokens=sums["completion_tokens"],
        seconds=seconds,
        size=size,
    )


def bound(strategy: str, passages: int) -> Bound | None:
    """Return the most calls and searches of a question; None if none are stated, or only for other settings."""
    name, *pairs = strategy.split(",")
    _, settings = parse_strategy(strategy)
    own = STRATEGIES[name].bound
    if own is None or passages != 3 or {pair.partition("=")[0] for pair in pairs} - BUDGET.keys():
        return None
    limits = settings.get("max_calls"), settings.get("max_retrievals")
    calls, searches = (most if given is None else min(most, given) for most, given in zip(own, limits, strict=True))
    return Bound(calls, searches)


MANY = 1000
"""Calls of a question from which on a bound says little of what a question takes."""
LIMIT = "At most, of {}: thousands of calls for a question, by a model that never stops; max_calls=N limits them."
COUNTS = ("cells", "questions", "calls", "calls at most", "searches", "searches at most")
COLUMNS = dict.fromkeys((*COUNTS, "tokens read", "tokens written"), ",.0f")
COLUMNS |= {"minutes": ",.1f", "MiB": ",.1f", "dollars": ",.2f"}
"""Columns of the table after the first, with the format of their numbers."""
IMPORTANCE = ("cells", "questions", "calls", "minutes", "tokens read", "tokens written", "dollars", "calls at most")
IMPORTANCE += ("MiB", "searches", "searches at most")
NOTES = (
    "Means of {} questions that were asked for this estimate, times the questions without an answer.",
    "At most: the strategies' stated bounds, for three passages and default settings; not known for others.",
    "Minutes: at the speed of the questions asked, without the engine's start; a run keeps up to 512 questions in "
    "flight and takes less. MiB: the answers on disk.",
)


def estimate_table(groups: Mapping[str, Sequence[CellEstimate]], prices: tuple[float, float]) -> Table:
    """Return a row for each group of cells and one for all, with the assumptions as notes. Dollars need prices."""
    grouped = any(len(cells) > 1 for cells in groups.values())
    shown = [name for name in COLUMNS if {"dollars": any(prices), "cells": grouped}.get(name, True)]
    figures = {name: _total([each.figures(prices) for each in cells]) for name, cells in groups.items()}
    figures["all"] = _total([each.figures(prices) for cells in groups.values() for each in cells])
    asked = sum(each.asked for cells in groups.values() for each in cells)
    endless = [each.cell for cells in groups.values() for each in cells if each.most and each.most.calls > MANY]
    return Table(
        title="Dry run",
        caption="What the missing answers would take.",
        columns=["", *shown],
        rows=[
            [
                name,
                *(NOTHING if (value := of[column]) is None else format(value, COLUMNS[column]) for column in shown),
            ]
            for name, of in figures.items()
        ],
        notes=[note.format(asked) for note in (*NOTES, *([LIMIT.format(", ".join(endless))] if endless else []))],
        importance=[1 + shown.index(name) for name in IMPORTANCE if name in shown],
    )


def _total(cells: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the number of cells, and the sum of each figure that is known for all of them."""
    sums: dict[str, float | None] = {"cells": len(cells)}
    for name in cells[0]:
        known = [value for cell in cells if (value := cell[name]) is not None]
        sums[name] = sum(known) if len(known) == len(cells) else None
    return sums
