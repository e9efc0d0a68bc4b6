"""Trainings and sweeps: their curves, and how far they have come."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rag_train.eval.board.cards import Link, Run
from rag_train.eval.board.commands import Settings, after_training, evaluate, serve
from rag_train.eval.board.files import Tail, read_object
from rag_train.eval.matrix.cell import EVALUATIONS
from rag_train.table import duration
from rag_train.training.result import METRICS, RESULT

CURVES = ("loss", "eval_loss", "learning_rate", "rewards/margins", "rewards/accuracies", "eval_accuracy")
CURVES += ("reward", "decisions/retrieve", "em", "f1", "accuracy", "retrievals")
"""Metrics that are drawn: those of training, then those of ``rag-train eval --watch``."""
TITLES = {"loss": "Loss", "eval_loss": "Held-out loss", "rewards/accuracies": "Accuracy", "reward": "Reward"}
TITLES |= {"decisions/retrieve": "Decisions to retrieve", "eval_accuracy": "Held-out accuracy", "em": "Exact match"}


class Curves(Run):
    """A run with curves, whose points are told apart by the ``run`` that logged them."""

    def _begin(self, run: str) -> None:
        kept = [row for row in self.rows if row["run"] != run]
        if len(kept) < len(self.rows):
            self.rows = kept
            self.generation += 1

    def _point(self, run: str, row: Mapping[str, Any]) -> None:
        values = {name: row[name] for name in CURVES if _finite(row.get(name))}
        if values:
            self.rows.append({"run": run, "step": int(row["step"])} | values)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


class Training(Curves):
    """A training run: its ``output_dir``."""

    kind = "training"

    def __init__(self, path: Path, name: str, syntheses: dict[str, Settings]):
        super().__init__(path, name, syntheses)
        self._tails = [
            Tail(path / METRICS, self._start, self._logged),
            Tail(path / EVALUATIONS, partial(self._begin, "checkpoints"), self._evaluated),
        ]
        self._start()

    def files(self) -> list[Path]:
        return [self.path / name for name in (METRICS, EVALUATIONS, "run.json", RESULT)]

    def _start(self) -> None:
        self._begin("")
        self._last: dict[str, float] = {}
        self._pace = Pace()

    def _logged(self, row: dict[str, Any]) -> None:
        self._point("", row)
        self._last |= {name: value for name, value in row.items() if _finite(value)}
        self._pace.add(self._last)

    def _evaluated(self, row: dict[str, Any]) -> None:
        self._point("checkpoints", row)
        self._last["em"] = float(row["em"])

    def read(self) -> dict[str, Any]:
        problems: list[str] = []
        for tail in self._tails:
            tail.look()
        recipe = read_object(self.path / "run.json", problems).get("recipe", {})
        result = read_object(self.path / RESULT, problems)
        finished, epochs = bool(result), recipe.get("epochs", 0)
        share = min(1.0, self._last.get("epoch", 0.0) / epochs) if epochs else None
        step = f"{self._last.get('step', 0):,.0f}"
        measured = {title: f"{self._last[name]:.4f}" for name, title in TITLES.items() if name in self._last}
        facts = {name.capitalize(): str(recipe[name]) for name in ("stage", "model", "data") if name in recipe}
        return {
            "finished": finished,
            "line": ", ".join([f"step {step}", *(f"{title.lower()} {value}" for title, value in measured.items())]),
            "share": 1.0 if finished else share,
            "facts": facts | {"Step": step} | measured | self._cost(result, epochs),
            "commands": after_training(self.path, finished, self.syntheses.get(str(recipe.get("data")), {})),
            "problems": problems + [tail.problem for tail in self._tails if tail.problem],
        }

    def _cost(self, result: Mapping[str, Any], epochs: float) -> dict[str, str]:
        """Return the facts about tokens and time."""
        facts = {}
        if tokens := self._last.get("num_input_tokens_seen"):
            facts["Tokens"] = f"{tokens:,.0f}"
        if result:
            facts["Time"] = duration(result["seconds"])
            facts |= {"Weights kept": f"step {result['kept_step']:,}"} if result.get("kept_step") else {}
        elif (left := self._pace.left(epochs)) is not None:
            facts["Time left"] = f"about {duration(left)}"
        return facts


class Pace:
    """Epochs against seconds of the process that trains, which counts its seconds from its start."""

    def __init__(self) -> None:
        self._first = self._last = (0.0, 0.0)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row of metrics."""
        if "epoch" in row and "train_runtime" in row:
            now = (row["epoch"], row["train_runtime"])
            if now[1] < self._last[1]:  # a process that continued the run
                self._first = now
            self._last = now

    def left(self, epochs: float) -> float | None:
        """Return the seconds until ``epochs`` are trained, or None if that cannot be told yet."""
        trained, seconds = (last - first for first, last in zip(self._first, self._last, strict=True))
        return seconds / trained * max(0.0, epochs - self._last[0]) if trained > 0 and epochs else None


class Sweep(Curves):
    """A sweep: a directory with a training run for each trial."""

    kind = "sweep"

    def __init__(self, path: Path, name: str, syntheses: dict[str, Settings]):
        super().__init__(path, name, syntheses)
        self._tails: dict[str, Tail] = {}

    def _folders(self) -> list[Path]:
        return sorted(folder for folder in self.path.iterdir() if folder.name.isdigit() and folder.is_dir())

    def files(self) -> list[Path]:
        return [self.path / "sweep.json"] + [f / name for f in self._folders() for name in (METRICS, "trial.json")]

    def read(self) -> dict[str, Any]:
        problems: list[str] = []
        identity = read_object(self.path / "sweep.json", problems)
        sweep, data = identity.get("sweep", {}), str(identity.get("recipe", {}).get("data"))
        trials = {folder.name: read_object(folder / "trial.json", problems) for folder in self._folders()}
        problems += [problem for folder in self._folders() if (problem := self._follow(folder))]
        problems += [f"trial {trial}: {result['error']}" for trial, result in trials.items() if result.get("error")]
        best = _best(trials, sweep)
        states = Counter(result.get("state", "unknown") for result in trials.values())
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        facts = {"Method": str(sweep.get("method", "")), "Trials": counts}
        if best:
            facts |= {"Best": _described(best, trials[best]), "Metric": _metric(sweep)}
        made = self.syntheses.get(data, {})
        page = [Link("Page of the sweep", f"page/{quote(self.name + '/' if self.name else '')}sweep.html")]
        return {
            "finished": bool(trials) and not states["running"],
            "line": f"{counts}; best {trials[best]['value']:.4g}" if best else counts,
            "facts": facts,
            "best": best,
            "links": page if (self.path / "sweep.html").is_file() else [],
            "commands": [use(self.path / best, made) for use in (evaluate, serve)] if best else [],
            "problems": problems,
        }

    def _follow(self, folder: Path) -> str:
        begin, take = partial(self._begin, folder.name), partial(self._point, folder.name)
        tail = self._tails.setdefault(folder.name, Tail(folder / METRICS, begin, take))
        tail.look()
        return tail.problem and f"trial {folder.name}: {tail.problem}"


def _best(trials: Mapping[str, Mapping[str, Any]], sweep: Mapping[str, Any]) -> str:
    """Return the trial with the best value, or ""."""
    values = {trial: result["value"] for trial, result in trials.items() if _finite(result.get("value"))}
    if not values:
        return ""
    best = max if sweep["metric"]["goal"] == "maximize" else min
    return best(values, key=lambda trial: values[trial])


def _described(trial: str, result: Mapping[str, Any]) -> str:
    parameters = ", ".join(f"{name}={value}" for name, value in result["parameters"].items())
    return f"{result['value']:.4g} in trial {trial}: {parameters}"


def _metric(sweep: Mapping[str, Any]) -> str:
    better = "higher" if sweep["metric"]["goal"] == "maximize" else "lower"
    return f"{sweep['metric']['name']}, {better} is better"
