"""Numbers for the tables and plots of the page: an entry per configuration, which joins the seeds.

Intervals are two-sided, 95%. With a single seed they are over its questions: Wilson's interval for scores (not
empty if all answers are wrong, and conservative for values in [0, 1]), the normal approximation for costs. With
several seeds they are t-intervals of the seeds' means. All lie within the values' bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rag_train.eval.matrix.cell import Cell
from rag_train.eval.metrics.boundary import DecisionCounts
from rag_train.eval.metrics.intervals import Interval, across_seeds, share, share_across_seeds, wilson
from rag_train.eval.metrics.reliability import Reliability
from rag_train.eval.metrics.scores import OPTIONAL, Score
from rag_train.schema import Question

MEASURES = ("em", "f1", "accuracy", *OPTIONAL)
COSTS = ("retrievals", "rounds", "llm_calls", "tokens", "completion_tokens")


@dataclass(frozen=True)
class CellData:
    """A cell with its questions, and its scores in the order of the questions."""

    cell: Cell
    questions: Sequence[Question]
    scores: Sequence[Score]
    empty: int
    """Number of questions without an answer."""


def configurations(cells: Sequence[CellData]) -> list[dict[str, Any]]:
    """Return an entry per (model, strategy, dataset, retriever), in order of first appearance."""
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for number, data in enumerate(cells):
        cell = data.cell
        groups.setdefault((cell.model, cell.strategy, cell.dataset, cell.retriever), []).append(number)
    return [
        dict(zip(("model", "strategy", "dataset", "retriever"), key, strict=True))
        | {"cells": numbers}
        | _figures([cells[number] for number in numbers])
        for key, numbers in groups.items()
    ]


def _figures(group: Sequence[CellData]) -> dict[str, Any]:
    summaries = [data.cell.summary for data in group]
    overall = {name: interval([data.scores for data in group], name) for name in MEASURES + COSTS}
    boundaries = {
        "facts": [summary.fact_boundary for summary in summaries if summary.fact_boundary],
        "cot": [summary.cot_boundary for summary in summaries if summary.cot_boundary],
    }
    reliabilities = {
        "facts": [summary.fact_calibration for summary in summaries if summary.fact_calibration],
        "cot": [summary.cot_calibration for summary in summaries if summary.cot_calibration],
    }
    questions = sum(len(data.questions) for data in group)
    return {
        "questions": questions,
        "unparsed": sum(summary.unparsed for summary in summaries) / questions,
        "empty": sum(data.empty for data in group) / questions,
        "overall": overall,
        "hops": _parts(group, "hops"),
        "type": _parts(group, "type"),
        "tokens": _tokens(group),
        "errors": fmean(summary.errors for summary in summaries),
        "boundaries": {
            name: _counts(sum(counts[1:], start=counts[0])) for name, counts in boundaries.items() if counts
        },
        "reliability": {
            name: _reliability(sum(parts[1:], start=parts[0])) for name, parts in reliabilities.items() if parts
        },
    }


def interval(samples: Sequence[Sequence[Score]], name: str) -> tuple[float, float, float] | None:
    """Return mean, low and high end of a field over the scores that have it; None if no score has it.

    ``samples`` has the scores of each seed.
    """
    by_seed = [[value for score in scores if (value := _value(score, name)) is not None] for scores in samples]
    by_seed = [values for values in by_seed if values]
    if not by_seed:
        return None
    if len(by_seed) > 1:
        means = [fmean(values) for values in by_seed]
        return _triple(share_across_seeds(means) if name in MEASURES else across_seeds(means))
    [values] = by_seed
    if name in MEASURES:
        return _triple(share(values))
    half = 1.959964 * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return _triple(Interval(mean=fmean(values), lo=fmean(values) - half, hi=fmean(values) + half))


def _value(score: Score, name: str) -> float | None:
    return score.prompt_tokens + score.completion_tokens if name == "tokens" else getattr(score, name)


def _triple(interval: Interval) -> tuple[float, float, float]:
    """Return mean and ends; no score and no cost is below 0."""
    return interval.mean, max(0.0, interval.lo), interval.hi


def _parts(group: Sequence[CellData], name: str) -> list[dict[str, Any]]:
    """Return the measures for each value of a question field (``hops`` or ``type``)."""
    values = {getattr(question, name) for data in group for question in data.questions} - {None, ""}
    parts = []
    for value in sorted(values):
        samples = [
            [
                score
                for question, score in zip(data.questions, data.scores, strict=True)
                if getattr(question, name) == value
            ]
            for data in group
        ]
        samples = [sample for sample in samples if sample]
        measures = {measure: interval(samples, measure) for measure in MEASURES}
        parts.append({"value": value, "questions": sum(map(len, samples))} | measures)
    return parts


def _tokens(group: Sequence[CellData]) -> list[list[Any]]:
    """Return [module, calls, prompt tokens, completion tokens] of each module, as means per question."""
    uses = [data.cell.summary.tokens for data in group]
    fields = ("calls", "prompt_tokens", "completion_tokens")
    modules = dict.fromkeys(module for use in uses for module in use)
    return [
        [module, *(fmean(getattr(use.get(module), name, 0.0) for use in uses) for name in fields)]
        for module in modules
    ]


def _counts(counts: DecisionCounts) -> dict[str, Any]:
    """Return the confusion matrix and its measures (DeepRAG, Table 3); NaN becomes None."""
    ratios = ("mcc", "f1", "accuracy", "balanced_accuracy", "retrieved_known", "retrieved_unknown")
    values = {name: getattr(counts, name) for name in ratios}
    return counts.model_dump() | {name: None if math.isnan(value) else value for name, value in values.items()}


def _reliability(reliability: Reliability) -> dict[str, Any]:
    """Return points of (mean probability, share unknown with its interval, decisions), and the ECE."""
    points = [
        (bin.probability, bin.frequency, *wilson(bin.frequency, bin.count), bin.count) for bin in reliability.bins
    ]
    return {"points": points, "ece": reliability.ece, "steps": reliability.count}
