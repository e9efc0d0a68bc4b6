"""What tuning is worth: each strategy with the tuned model and with the untuned one, on the same questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rag_train.eval.demo.claims import verdict
from rag_train.eval.metrics.intervals import cluster_bootstrap
from rag_train.table import Table


def gains_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return exact match of the strategies that both models answered with, and the difference.

    ``rows`` are rows of `rag_train.eval.real.run` as JSON values, on one set of questions, of any number of seeds.
    The interval is over questions: all seeds' answers to a question are resampled together. From two seeds on, the
    table also has the difference in each seed and the verdict of ``protocol.yaml``.
    """
    pairs: dict[str, dict[str, dict[tuple[int, str], float]]] = {}
    for row in rows:
        answers = pairs.setdefault(row["summary"]["strategy"].partition(",")[0], {})
        own = answers.setdefault(row["model"], {})
        own |= {(row["seed"], question): em for question, em in row["em"].items()}
    several = len({row["seed"] for row in rows}) > 1
    cells = []
    for strategy, models in pairs.items():
        if models.keys() != {"untuned", "tuned"}:
            continue
        untuned, tuned = models["untuned"], models["tuned"]
        common = [key for key in untuned if key in tuned]
        asked = [question for _, question in common]
        gain = cluster_bootstrap([tuned[key] - untuned[key] for key in common], asked)
        by_seed = [
            fmean(tuned[key] - untuned[key] for key in common if key[0] == seed)
            for seed in sorted({seed for seed, _ in common})
        ]
        cells.append(
            [
                strategy,
                str(len(set(asked))),
                *(f"{100 * fmean(each[key] for key in common):.1f}" for each in (untuned, tuned)),
                f"{100 * gain.mean:+.1f} [{100 * gain.lo:+.1f}, {100 * gain.hi:+.1f}]",
            ]
        )
        if several:
            cells[-1] += [", ".join(f"{100 * each:+.1f}" for each in by_seed), verdict(gain.lo, gain.hi, by_seed)]
    return Table(
        title="Untuned and tuned",
        caption="Exact match in percent, on the same questions; 95% interval, resampled by question.",
        columns=[
            *("Strategy", "Questions", "Untuned", "Tuned", "Difference"),
            *(("By seed", "Tuned is better") if several else ()),
        ],
        rows=cells,
        notes=["The untuned model has the methods' instructions in its prompts, the tuned model has none."],
    )
