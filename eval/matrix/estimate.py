"""The estimate of an evaluation (`rag-train eval --dry-run`), from a few questions of each cell.

The questions are answered in a temporary directory, so that nothing is kept but the engine's cache. Only cells that
lack answers are asked. The most calls and searches of a question are the strategies' stated bounds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rag_train.eval.matrix.answers import Answers
from rag_train.eval.matrix.cell import CellName
from rag_train.eval.matrix.run import for_model, open_kits, stores
from rag_train.questions.load import at_most
from rag_train.resumable import cost
from rag_train.retrieval.base import Retriever
from rag_train.schema import Question, Trajectory
from rag_train.strategies.bounds import BOUNDS, Bound
from rag_train.strategies.kit import KitConfig
from rag_train.strategies.registry import BUDGET, parse_strategy
from rag_train.table import NOTHING, Table

SHARE = 100
"""Of so many questions one is asked,"""
LEAST = 4
"""but at least so many."""


@dataclass(frozen=True)
class CellEstimate:
    """What the missing answers of a cell would take.

    Attributes:
        questions: number of questions without an answer.
        asked: number of them that were asked, with the sums of ``calls``, ``searches``, tokens and ``seconds``.
    """

    cell: str
    questions: int
    asked: int
    calls: int
    searches: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    most: Bound | None

    def scaled(self, value: float) -> float:
        """Return what a sum over the questions that were asked is for all."""
        return value * self.questions / self.asked

    def figures(self, prices: tuple[float, float]) -> dict[str, float | None]:
        """Return the numbers of the table by column; ``prices`` are those of a million tokens read and written."""
        read, written = self.scaled(self.prompt_tokens), self.scaled(self.completion_tokens)
        return {
            "questions": self.questions,
            "calls": self.scaled(self.calls),
            "calls at most": self.most and self.most.calls * self.questions,
            "searches": self.scaled(self.searches),
            "searches at most": self.most and self.most.retrievals * self.questions,
            "tokens read": read,
            "tokens written": written,
            "minutes": self.scaled(self.seconds) / 60,
            "dollars": (read * prices[0] + written * prices[1]) / 1e6,
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
        model_config = for_model(config, place)
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
                few = at_most(missing, max(LEAST, len(missing) // SHARE), seed)
                with tempfile.TemporaryDirectory() as folder:
                    start = time.perf_counter()
                    answered = await Answers(Path(folder), name.strategy, {}).ask(kits[name.retriever], few)
                    seconds = time.perf_counter() - start
                found.append(_estimate(name, len(missing), answered, seconds, config.passages))
    return found


def _estimate(
    name: CellName, questions: int, answered: Sequence[Trajectory], seconds: float, passages: int
) -> CellEstimate:
    sums = cost(call for trajectory in answered for call in trajectory.calls)
    return CellEstimate(
        cell=name.id,
        questions=questions,
        asked=len(answered),
        calls=sums["engine_calls"],
        searches=sum(trajectory.retrievals for trajectory in answered),
        prompt_tokens=sums["prompt_tokens"],
        completion_tokens=sums["completion_tokens"],
        seconds=seconds,
        most=bound(name.strategy, passages),
    )


def bound(strategy: str, passages: int) -> Bound | None:
    """Return the most calls and searches of a question; None if they are stated for other settings only."""
    name, *pairs = strategy.split(",")
    _, settings = parse_strategy(strategy)
    if passages != 3 or {pair.partition("=")[0] for pair in pairs} - BUDGET.keys():
        return None
    limits = settings.get("max_calls"), settings.get("max_retrievals")
    own = BOUNDS[name]
    calls, searches = (most if given is None else min(most, given) for most, given in zip(own, limits, strict=True))
    return Bound(calls, searches)


COLUMNS = {
    "questions": ",.0f",
    "calls": ",.0f",
    "calls at most": ",.0f",
    "searches": ",.0f",
    "searches at most": ",.0f",
    "tokens read": ",.0f",
    "tokens written": ",.0f",
    "minutes": ",.1f",
    "dollars": ",.2f",
}
"""Columns of the table after the first, with the format of their numbers."""
IMPORTANCE = (1, 2, 8, 6, 7, 9, 3, 4, 5)
NOTES = (
    "At most: the strategies' stated bounds, for three passages and default settings; not known for others.",
    "Minutes: at the speed of the questions asked, without the engine's start; a run keeps up to 512 questions in "
    "flight and takes less.",
)


def estimate_table(estimates: Sequence[CellEstimate], prices: tuple[float, float]) -> Table:
    """Return a row for each cell and one for all, with the assumptions as notes. Dollars need prices."""
    shown = [name for name in COLUMNS if name != "dollars" or any(prices)]
    figures = [each.figures(prices) for each in estimates]
    columns = {name: [each[name] for each in figures] for name in shown}
    total = {name: _sum(values) for name, values in columns.items()}
    rows = [[each.cell, *_formatted(of, shown)] for each, of in zip(estimates, figures, strict=True)]
    asked = sum(each.asked for each in estimates)
    means = f"Means of {asked} questions that were asked for this estimate, times the questions without an answer."
    return Table(
        title="Dry run",
        caption="What the missing answers would take.",
        columns=["", *shown],
        rows=[*rows, ["all", *_formatted(total, shown)]],
        notes=[means, *NOTES],
        importance=[number for number in IMPORTANCE if number <= len(shown)],
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _formatted(figures: Mapping[str, float | None], shown: Sequence[str]) -> list[str]:
    return [NOTHING if figures[name] is None else format(figures[name], COLUMNS[name]) for name in shown]
