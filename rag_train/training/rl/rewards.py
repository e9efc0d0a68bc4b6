"""The parts of a rollout's reward: pure functions of a question and of the trajectory that answered it.

The reward is the sum of the parts, multiplied by the recipe's weights (``rl.reward``) and by the negative of its
prices (``rl.price``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from rag_train import answers
from rag_train.schema import Question, Trajectory
from rag_train.training.recipe import RLRecipe


def exact_match(question: Question, trajectory: Trajectory) -> float:
    """1 if the answer equals an accepted answer, else 0."""
    return float(answers.exact_match(trajectory.answer, question.answers, answers.rules_of(question)))


def f1(question: Question, trajectory: Trajectory) -> float:
    """Token F1 with the best-matching accepted answer, in [0, 1]."""
    return answers.f1(trajectory.answer, question.answers, answers.rules_of(question))


def format(question: Question, trajectory: Trajectory) -> float:
    """1 if the model ended the transcript by itself with an answer, 0 if a call was cut or the answer forced."""
    return float(trajectory.answer is not None and not trajectory.notes and trajectory.error is None)


def retrievals(question: Question, trajectory: Trajectory) -> float:
    """Number of queries sent to the retriever."""
    return float(trajectory.retrievals)


def calls(question: Question, trajectory: Trajectory) -> float:
    """Number of engine calls."""
    return float(len(trajectory.calls))


def tokens(question: Question, trajectory: Trajectory) -> float:
    """Number of tokens that the model wrote."""
    return float(sum(call.completion_tokens for call in trajectory.calls))


PARTS: dict[str, Callable[[Question, Trajectory], float]] = {
    part.__name__: part for part in (exact_match, f1, format, retrievals, calls, tokens)
}
"""All parts by name. Each is logged, also those with a weight of 0."""


def weights(recipe: RLRecipe) -> dict[str, float]:
    """Return the weight of each part; prices are negative weights."""
    return asdict(recipe.reward) | {name: -price for name, price in asdict(recipe.price).items()}


def total(question: Question, trajectory: Trajectory, weights: Mapping[str, float]) -> float:
    """Return the reward, the weighted sum of the parts."""
    return sum(weight * PARTS[name](question, trajectory) for name, weight in weights.items() if weight)
