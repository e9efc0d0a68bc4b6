"""Sweep files of W&B (docs.wandb.ai/models/sweeps/define-sweep-configuration), checked before any trial starts.

The same file works with ``wandb sweep FILE`` and ``wandb agent ID``, and with ``rag-train sweep FILE``, which needs
no account.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rag_train.errors import UserError, not_installed
from rag_train.recipe import load_recipe
from rag_train.training.recipe import Count, TrainRecipe

try:
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
except ImportError as error:
    raise not_installed(error, "sweep") from error

METRICS = {
    "sft": ["train/loss"],
    "dpo": ["train/rewards/accuracies", "train/rewards/margins", "train/loss"],
    "rl": ["train/reward", "train/loss"],
    "held out": ["eval/loss", "eval/accuracy"],
}
"""Metrics of each stage, and of every recipe with ``eval_data``, by their names in W&B."""
PLACEHOLDER = "${args_no_hyphens}"
"""Word of the command that is replaced by the parameters, as ``key=value``."""
DISTRIBUTIONS = ("int_uniform", "uniform", "q_uniform", "log_uniform_values")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The metric by which trials are ranked."""

    name: str
    """eval/loss or eval/accuracy if the recipe has ``eval_data``; otherwise train/loss, train/rewards/margins,
    train/rewards/accuracies or train/reward."""
    goal: Literal["minimize", "maximize"] = "minimize"
    """Direction of improvement."""


@dataclass(frozen=True, kw_only=True)
class SweepFile:
    """The supported keys of W&B's sweep files; any other key is an error."""

    method: Literal["grid", "random", "bayes"]
    """grid: all combinations. random: random points. bayes: points chosen from the results so far."""
    metric: Metric
    """Metric by which trials are ranked. Its last value counts, or of eval/ that of the weights that are kept."""
    parameters: dict[str, dict[str, Any]]
    """Recipe keys (dotted), each with value, with values, or with min and max and a distribution."""
    command: list[str]
    """Command of a trial: … rag_train.train RECIPE key=value … ${args_no_hyphens}."""
    run_cap: Count | None = None
    """Maximum number of trials; by default a grid runs all combinations."""
    program: str = ""
    """Used by W&B only."""
    name: str = ""
    """Used by W&B only."""
    description: str = ""
    """Used by W&B only."""
    project: str = ""
    """Used by W&B only."""
    entity: str = ""
    """Used by W&B only."""


@dataclass(frozen=True)
class Sweep:
    """A valid sweep: its file, its recipe and its parameter space."""

    path: Path
    file: SweepFile
    recipe: TrainRecipe
    """The recipe with the overrides of the command, without parameters."""
    space: dict[str, BaseDistribution]

    @property
    def metric(self) -> str:
        """Name of the metric in training.json."""
        return self.file.metric.name.removeprefix("train/").replace("eval/", "eval_")

    @property
    def maximize(self) -> bool:
        return self.file.metric.goal == "maximize"

    def command(self, parameters: dict[str, Any], *more: str) -> list[str]:
        """Return the command of a trial, macros replaced as W&B's agent does; ``more`` are further overrides."""
        arguments = [f"{name}={json.dumps(value)}" for name, value in parameters.items()]
        macros = {PLACEHOLDER: [*arguments, *more], "${env}": ["/usr/bin/env"], "${interpreter}": ["python"]}
        return [word for part in self.file.command for word in macros.get(part, [part])]


def load_sweep(path: Path) -> Sweep:
    """Read and check the sweep file at ``path``.

    Raises UserError for an unknown key, a metric that the stage does not log, a metric of training although the
    recipe has ``eval_data``, a parameter that is not a recipe key, or a value that the recipe does not accept.
    """
    file = load_recipe(SweepFile, path)
    recipe_path, fixed = _recipe_of(path, file.command)
    recipe = load_recipe(TrainRecipe, recipe_path, fixed)
    metric, known = file.metric.name, METRICS["held out" if recipe.eval_data else recipe.stage]
    if metric not in known:
        reason = f"not logged in stage {recipe.stage}"
        if recipe.eval_data:
            reason = "the recipe has eval_data, by which trials are ranked"
        elif metric in METRICS["held out"]:
            reason += " without eval_data"
        raise UserError(f"{path}: metric {metric}: {reason}; give {', '.join(known)}")
    if not file.parameters:
        raise UserError(f"{path}: parameters: empty; add recipe keys with their values")
    space = {}
    for name, spec in file.parameters.items():
        place = f"{path}: parameter {name}"
        if name == "output_dir":
            raise UserError(f"{place}: each trial has its own directory; remove the parameter, and give --output")
        space[name] = _distribution(place, spec)
        if file.method == "grid" and not isinstance(space[name], CategoricalDistribution):
            raise UserError(f"{place}: method grid needs a list of values; give values, or set method: bayes")
        try:
            for value in _extremes(space[name]):
                load_recipe(TrainRecipe, recipe_path, [*fixed, f"{name}={json.dumps(value)}"])
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
    return Sweep(path, file, recipe, space)


def _recipe_of(path: Path, command: Sequence[str]) -> tuple[str, list[str]]:
    """Return the path of the recipe in a trial's command, and the overrides that follow it."""
    at = next((i for i, word in enumerate(command) if word == "rag_train.train"), None)
    words = [] if at is None else [word for word in command[at + 1 :] if not word.startswith("${")]
    if not words or PLACEHOLDER not in command:
        shape = f"python -m rag_train.train RECIPE {PLACEHOLDER}"
        raise UserError(f"{path}: command: not a training command; write a list of the words {shape}")
    return words[0], words[1:]


def _distribution(place: str, spec: dict[str, Any]) -> BaseDistribution:
    """Return Optuna's distribution for W&B's; without the key distribution, it follows from the other keys."""
    try:
        match spec:
            case {"value": value, **rest} if rest.keys() <= {"distribution"}:
                return CategoricalDistribution([value])
            case {"values": [*values], **rest} if values and rest.keys() <= {"distribution"}:
                return CategoricalDistribution(values)
            case {"min": int(low), "max": int(high), **rest} if rest in ({}, {"distribution": "int_uniform"}):
                return IntDistribution(low, high)
            case {"min": low, "max": high, **rest} if rest in ({}, {"distribution": "uniform"}):
                return FloatDistribution(low, high)
            case {"min": low, "max": high, "q": step, "distribution": "q_uniform"}:
                return FloatDistribution(low, high, step=step)
            case {"min": low, "max": high, "distribution": "log_uniform_values"}:
                return FloatDistribution(low, high, log=True)
    except (ValueError, TypeError) as error:
        raise UserError(f"{place}: {str(error).rstrip('.')}; correct its values") from error
    raise UserError(
        f"{place}: {json.dumps(spec, default=str)} is not supported; give value, values, or min and max with one "
        f"of the distributions {', '.join(DISTRIBUTIONS)}"
    )


def _extremes(distribution: BaseDistribution) -> Sequence[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return (distribution.low, distribution.high)
