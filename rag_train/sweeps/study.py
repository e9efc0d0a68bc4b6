"""The trials of a sweep, kept on disk as one ``trial.json`` each and passed to Optuna's sampler."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from rag_train.errors import UserError
from rag_train.jobs.files import write_json
from rag_train.sweeps.file import Sweep

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Trial:
    """A point of the parameter space, and its result."""

    number: int
    parameters: dict[str, Any]
    state: Literal["running", "finished", "failed"] = "running"
    value: float | None = None
    """Value of the metric, as `SweepFile.metric` says."""
    error: str | None = None
    """Reason of the failure, one line."""
    seconds: float = 0.0
    size: int | None = None
    """Number of parameters that it trained; None in sweeps of earlier versions."""


def best_of(sweep: Sweep, trials: list[Trial]) -> list[Trial]:
    """Return the finished trials, best first."""
    finished = [trial for trial in trials if trial.value is not None]
    return sorted(finished, key=lambda trial: trial.value or 0.0, reverse=sweep.maximize)


def front_of(sweep: Sweep, trials: list[Trial]) -> list[Trial]:
    """Return the Pareto front of the metric against the trained parameters, the smallest trial first.

    A trial is on the front if it is better than all smaller ones, and none of its size is better; of equals, the
    first. Empty if all trials have the same size.
    """
    ranked = [trial for trial in best_of(sweep, trials) if trial.size]
    if len({trial.size for trial in ranked}) < 2:
        return []
    front: list[Trial] = []
    for trial in sorted(ranked, key=lambda trial: trial.size or 0):  # stable: of one size, the best comes first
        if not front or best_of(sweep, [front[-1], trial])[0] is trial:
            front.append(trial)
    return front


def total_trials(sweep: Sweep, trials: int | None) -> int:
    """Return the number of trials to run: ``trials``, or else the file's cap; at most the number of grid points."""
    cap = trials or sweep.file.run_cap
    if sweep.file.method == "grid":
        points = math.prod(len(choices) for choices in _choices(sweep))
        return min(points, cap or points)
    if cap is None:
        raise UserError(f"{sweep.path}: the number of trials is not given; add run_cap, or give --trials")
    return cap


def _choices(sweep: Sweep) -> list[tuple[Any, ...]]:
    return [d.choices for d in sweep.space.values() if isinstance(d, CategoricalDistribution)]


class Study:
    """The trials in ``output``, each in its numbered directory."""

    def __init__(self, sweep: Sweep, output: Path, total: int):
        self.sweep, self.output, self.total = sweep, output, total
        self.trials: list[Trial] = []
        while (path := self.directory(len(self.trials)) / "trial.json").exists():
            self.trials.append(Trial(**json.loads(path.read_text())))
        self._study = optuna.create_study(direction="maximize" if sweep.maximize else "minimize")
        for trial in self.trials:
            state = {"finished": TrialState.COMPLETE, "failed": TrialState.FAIL}.get(trial.state)
            if state is None:  # interrupted
                self._study.enqueue_trial(trial.parameters)
                continue
            known = create_trial(state=state, value=trial.value, params=trial.parameters, distributions=sweep.space)
            self._study.add_trial(known)
        if sweep.file.method == "grid":
            for point in list(product(*_choices(sweep)))[:total]:
                self._study.enqueue_trial(dict(zip(sweep.space, point, strict=True)), skip_if_exists=True)

    def directory(self, number: int) -> Path:
        return self.output / f"{number:04d}"

    @property
    def ended(self) -> int:
        return sum(trial.state != "running" for trial in self.trials)

    def next(self) -> Trial | None:
        """Return the next trial to run, interrupted trials first; None if all trials have been started."""
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        asked = len(self._study.trials) - len(waiting)
        if asked >= self.total:
            return None
        # Each trial has its own seeded sampler, so that a resumed sweep draws the same points.
        self._study.sampler = (TPESampler if self.sweep.file.method == "bayes" else RandomSampler)(seed=asked)
        drawn = self._study.ask(self.sweep.space)
        trial = Trial(drawn.number, drawn.params)
        self.record(trial)
        return trial

    def record(self, trial: Trial) -> None:
        """Store ``trial`` in memory and on disk, and report it to Optuna if it has ended."""
        self.trials[trial.number : trial.number + 1] = [trial]
        write_json(self.directory(trial.number) / "trial.json", asdict(trial))
        if trial.state == "finished":
            self._study.tell(trial.number, trial.value)
        elif trial.state == "failed":
            self._study.tell(trial.number, state=TrialState.FAIL)
