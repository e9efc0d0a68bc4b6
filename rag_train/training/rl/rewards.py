"""The parts of a rollout's reward: functions of a question and of the trajectory that answered it.

The reward is the sum of the parts, each multiplied by its weight (``rl.reward``) and by the negative of its price
(``rl.price``). A new part is a function with the decorator `reward` in this file, or a function of the user's own,
which the recipe names ``module:function``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import TypeVar

from rag_train import answers
from rag_train.errors import OneProcessError, UserError
from rag_train.schema import Question, Trajectory

Part = Callable[[Question, Trajectory], float]
PartT = TypeVar("PartT", bound=Part)
PARTS: dict[str, Part] = {}
"""Our parts by name. Each is logged, also those with a weight of 0."""


def needing(*fields: str) -> Callable[[PartT], PartT]:
    """Say which fields of a question a part reads, such as ``gold_passages``; a question without one is refused."""

    def mark(part: PartT) -> PartT:
        part.needs = fields  # pyrefly: ignore[missing-attribute]
        return part

    return mark


def reward(part: PartT) -> PartT:
    """Register a part under its name."""
    PARTS[part.__name__] = part
    return part


@reward
def exact_match(question: Question, trajectory: Trajectory) -> float:
    """1 if the answer equals an accepted answer, else 0."""
    return float(answers.exact_match(trajectory.answer, question.answers, answers.rules_of(question)))


@reward
def f1(question: Question, trajectory: Trajectory) -> float:
    """Token F1 with the best-matching accepted answer, in [0, 1]."""
    return answers.f1(trajectory.answer, question.answers, answers.rules_of(question))


@reward
def format(question: Question, trajectory: Trajectory) -> float:
    """1 if the model ended the transcript by itself with an answer, 0 if a call was cut or the answer forced."""
    return float(trajectory.answer is not None and not trajectory.notes and trajectory.error is None)


@reward
def retrievals(question: Question, trajectory: Trajectory) -> float:
    """Number of queries sent to the retriever."""
    return float(trajectory.retrievals)


@reward
def calls(question: Question, trajectory: Trajectory) -> float:
    """Number of engine calls."""
    return float(len(trajectory.calls))


@reward
def tokens(question: Question, trajectory: Trajectory) -> float:
    """Number of tokens that the model wrote."""
    return float(sum(call.completion_tokens for call in trajectory.calls))


class Rewards:
    """The parts of a recipe and their weights by name; a price is a negative weight.

    Raises UserError if a part is not known, or not a function of a question and a trajectory.
    """

    def __init__(self, reward: Mapping[str, float], price: Mapping[str, float]):
        names = dict.fromkeys([*PARTS, *reward, *price])
        self.weights = {name: reward.get(name, 0.0) - price.get(name, 0.0) for name in names}
        self._keys = {name: f"rl.{'price' if name in price else 'reward'}.{name}" for name in names}
        self._parts = {name: PARTS.get(name) or _own(self._keys[name], name) for name in names}

    def measure(self, question: Question, trajectory: Trajectory) -> dict[str, float]:
        """Return the value of each part, before its weight. Raises OneProcessError if one is no finite number."""
        values = {}
        for name, part in self._parts.items():
            place = f"{self._keys[name]}: question {question.id!r}"
            try:
                values[name] = value = float(part(question, trajectory))
            except Exception as error:  # of any type: the function is the user's
                raise OneProcessError(f"{place}: {type(error).__name__}: {error}; correct the function") from error
            if not math.isfinite(value):
                raise OneProcessError(f"{place}: the value is {value}; return a finite number")
        return values

    def total(self, values: Mapping[str, float]) -> float:
        """Return the reward, the weighted sum of the values of the parts."""
        return sum(weight * values[name] for name, weight in self.weights.items() if weight)

    def check(self, questions: Iterable[Question]) -> None:
        """Raise UserError if a question lacks a field that a part needs (see `needing`)."""
        needs = [(name, field) for name, part in self._parts.items() for field in getattr(part, "needs", ())]
        for question in questions if needs else ():
            for name, field in needs:
                if not getattr(question, field):
                    raise UserError(f"{self._keys[name]}: needs {field}, which question {question.id!r} lacks")

    def own_code(self) -> dict[str, str]:
        """Return the identity of the user's own functions, by name."""
        from rag_train.identity import code  # here, for it imports more than a recipe needs

        return {name: code(part) for name, part in self._parts.items() if name not in PARTS}


def _own(key: str, name: str) -> Part:
    """Return the function ``name``, ``module:function``, of an installed module or one in the working directory."""
    module, colon, function = name.partition(":")
    if not colon:
        raise UserError(
            f"{key}: unknown; the parts are {', '.join(PARTS)}, and module:function for one of your own"
        )
    if (here := str(Path.cwd())) not in sys.path:  # a console script looks only among installed modules
        sys.path.append(here)
    try:
        found = import_module(module)
    except Exception as error:  # of any type: the module is the user's
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UserError(
            f"{key}: module {module!r} cannot be imported ({reason}); give one that is installed or lies in {here}"
        ) from error
    part = getattr(found, function, None)
    if not callable(part):
        raise UserError(f"{key}: {found.__file__} has no function {function!r}")
    try:
        signature(part).bind(None, None)
    except (TypeError, ValueError):
        part = None
    if part is None or iscoroutinefunction(part):
        raise UserError(f"{key}: not a function of two arguments; define def {function}(question, trajectory)")
    return part
