"""FLARE, DRAGIN and Self-RAG with several thresholds on dev questions, to choose the settings of the lab.

The papers tune these thresholds for each dataset, and the defaults are those of large models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rag_train.eval.metrics.scores import score
from rag_train.eval.miniworld.answers import Request, ask
from rag_train.eval.miniworld.lab import Lab, Settings
from rag_train.progress import console
from rag_train.provenance import save_result
from rag_train.table import Table

GRID = {
    "flare": [f"theta={theta}" for theta in (0.2, 0.4, 0.6, 0.8, 0.95)],
    "dragin": [f"threshold={threshold}" for threshold in (0.01, 0.05, 0.2, 0.5, 1.0)],
    "self-rag": [f"threshold={threshold}" for threshold in (0.0, 0.2, 0.4, 0.6, 0.8)],
}
"""Settings to try, by strategy. The defaults are among them."""
SETS = ("single", "rare", "changed", "two-hop", "mixed")
"""The question sets on which DeepRAG's paper compares the methods."""


@dataclass(frozen=True)
class Row:
    """One setting: exact match of each seed, and retrievals per question of all seeds."""

    strategy: str
    setting: str
    em: list[float]
    retrievals: float


async def run(seeds: Sequence[int], settings: Settings, output: Path) -> None:
    """Answer dev questions with every setting, print the table, and write ``thresholds.json`` to ``output``."""
    grid = [(name, setting) for name, settings_of in GRID.items() for setting in settings_of]
    means: dict[tuple[str, str], list[tuple[float, float]]] = {each: [] for each in grid}
    for seed in seeds:
        lab = Lab(seed, settings)
        requests = {
            Request("taught", ",".join(each), questions): lab.questions(questions)
            for each in grid
            for questions in SETS
        }
        answers = await ask(lab, requests)
        for each in grid:
            its = [request for request in requests if request.strategy == ",".join(each)]
            scores = [found for request in its for found in score(requests[request], answers[request])]
            means[each].append((fmean(s.em for s in scores), fmean(s.retrievals for s in scores)))
    rows = [Row(*each, [em for em, _ in its], fmean(found for _, found in its)) for each, its in means.items()]
    console.print(table(rows))
    result = {"seeds": list(seeds), "settings": settings.recorded(), "rows": [asdict(row) for row in rows]}
    save_result(output / "thresholds.json", result)


def table(rows: Sequence[Row]) -> Table:
    """Return a row for each setting. A strategy's best one is marked: of equal ones, that with fewer retrievals."""
    best = {row.strategy: row for row in sorted(rows, key=lambda row: (fmean(row.em), -row.retrievals))}
    return Table(
        title="Thresholds",
        caption="Exact match in percent on dev questions, mean over seeds, and by seed; retrievals per question.",
        columns=["Strategy", "Setting", "Exact match", "By seed", "Retrievals", ""],
        rows=[
            [
                row.strategy,
                row.setting,
                f"{100 * fmean(row.em):.1f}",
                ", ".join(f"{100 * em:.1f}" for em in row.em),
                f"{row.retrievals:.2f}",
                "best" if row is best[row.strategy] else "",
            ]
            for row in rows
        ],
        notes=["The best settings go into Settings (eval/miniworld/lab.py) and eval/papers/protocol.yaml."],
    )
