"""What tuning is worth: each strategy with the tuned model and with the untuned one, on the same questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rag_train.eval.demo.claims import verdict
from rag_train.eval.metrics.intervals import cluster_bootstrap
from rag_train.eval.papers.protocol import seeds_of
from rag_train.table import Table

PROTOCOL = Path(__file__).with_name("protocol.yaml")
CLAIMED = ("deeprag", "dualrag", "hanrag", "planrag", "levelrag")
"""Strategies that the protocol claims to be better with the tuned model."""


def gains_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return exact match of the strategies that both models answered with, and the difference.

    ``rows`` are rows of `rag_train.eval.real.run` as JSON values, on any number of sets and seeds. The interval is
    over questions: all seeds' answers to a question are resampled together. The answers that contain a gold answer
    tell how much of a gain is the form of the answer. From two seeds on, the table also has the difference in each
    seed, and with all test seeds of ``protocol.yaml`` its verdicts.
    """
    pairs: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        models = pairs.setdefault(row["summary"]["strategy"].partition(",")[0], {})
        models.setdefault(row["model"], []).append(row)
    seeds = sorted({row["seed"] for row in rows})
    judged = seeds == seeds_of(PROTOCOL, "test")
    cells = []
    for strategy, models in pairs.items():
        if models.keys() != {"untuned", "tuned"}:
            continue
        untuned, tuned = (_matches(models[name]) for name in ("untuned", "tuned"))
        common = [key for key in untuned if key in tuned]
        asked = [question for _, question in common]
        differences = [tuned[key] - untuned[key] for key in common]
        gain = cluster_bootstrap(differences, asked)
        interval = f"[{100 * gain.lo:+.1f}, {100 * gain.hi:+.1f}]" if len(set(differences)) > 1 else "–"
        cells.append(
            [
                strategy,
                str(len(set(asked))),
                *(f"{100 * fmean(each[key] for key in common):.1f}" for each in (untuned, tuned)),
                f"{100 * gain.mean:+.1f} {interval}",
                *(f"{100 * _accuracy(models[name]):.1f}" for name in ("untuned", "tuned")),
            ]
        )
        by_seed = [fmean(d for d, key in zip(differences, common, strict=True) if key[0] == seed) for seed in seeds]
        if len(seeds) > 1:
            cells[-1].append(", ".join(f"{100 * each:+.1f}" for each in by_seed))
        if judged:
            cells[-1].append(verdict(gain.lo, gain.hi, by_seed) if strategy in CLAIMED else "not claimed")
    return Table(
        title="Untuned and tuned",
        caption="Exact match in percent, on the same questions; 95% interval, resampled by question. Contained: "
        "answers that contain a gold answer, in percent.",
        columns=[
            *("Strategy", "Questions", "Untuned", "Tuned", "Difference", "Contained, untuned", "Contained, tuned"),
            *(("Difference by seed",) if len(seeds) > 1 else ()),
            *(("Tuned is better",) if judged else ()),
        ],
        rows=cells,
        notes=["The untuned model has the methods' instructions in its prompts, the tuned model has none."],
    )


def _matches(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str], float]:
    """Return the exact match of every answer, by seed and question."""
    return {(row["seed"], question): em for row in rows for question, em in row["em"].items()}


def _accuracy(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the share of answers that contain a gold answer."""
    counted = [(row["summary"]["accuracy"]["mean"], len(row["em"])) for row in rows]
    return sum(mean * count for mean, count in counted) / sum(count for _, count in counted)
