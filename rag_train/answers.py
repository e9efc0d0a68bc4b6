"""Comparison of short answers, with the rules of each dataset's released evaluation script (`RULES`)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_train.errors import UserError
from rag_train.schema import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TRIVIA_PUNCTUATION = str.maketrans({mark: " " for mark in string.punctuation + "‘’´"})


def normalize(text: str) -> str:
    """Convert to lower case and remove punctuation, articles and extra white space (SQuAD's evaluation script)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normalize_trivia(text: str) -> str:
    """Normalize like `normalize`, but replace punctuation and curly quotation marks by spaces.

    This is the rule of TriviaQA's evaluation script.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_TRIVIA_PUNCTUATION)).split())


@dataclass(frozen=True)
class Rules:
    """Rules of an evaluation script for comparing a prediction with an answer.

    With several accepted answers, every script takes the best score.
    """

    normalize: Callable[[str], str] = normalize
    closed: bool = False
    """Whether "yes", "no" and "noanswer" have an F1 of 0 with every other text."""
    nothing: float = 0.0
    """F1 of two texts that are both empty after normalization."""
    substring: bool = False
    """Whether an answer can be any part of an accurate prediction, as written, in lower case or capitalized."""


HOTPOTQA = Rules(closed=True)
RULES = {
    "hotpotqa": HOTPOTQA,  # hotpot_evaluate_v1.py; 2WikiMultihopQA's and FlashRAG's are the same
    "popqa": Rules(closed=True, substring=True),  # run_model.py, which has no EM and no F1: they are HotpotQA's
    "musique": Rules(nothing=1.0),  # metrics/answer.py, evaluate_v1.0.py
    "squad": Rules(),  # evaluate-v1.1.py; Natural Questions is scored with it, too
    "triviaqa": Rules(normalize=normalize_trivia),  # evaluation/triviaqa_evaluation.py
}
"""Rules by the name in a question's ``metadata["scoring"]``. Questions without a name use HotpotQA's rules."""


def rules_of(question: Question) -> Rules:
    """Return how the question's dataset compares answers. Raises UserError if `RULES` lacks the scoring's name."""
    name = question.metadata.get("scoring")
    if name is None:
        return HOTPOTQA
    if name not in RULES:
        raise UserError(f"question {question.id!r}: unknown scoring {name!r}; give one of {', '.join(RULES)}")
    return RULES[name]


def exact_match(prediction: str | None, answers: Sequence[str], rules: Rules = HOTPOTQA) -> bool:
    """Whether the normalized prediction equals a normalized answer. The prediction None matches no answer."""
    return prediction is not None and rules.normalize(prediction) in set(map(rules.normalize, answers))


def contains(prediction: str | None, answers: Sequence[str], rules: Rules = HOTPOTQA) -> bool:
    """Whether a normalized, non-empty answer occurs in the normalized prediction as whole words."""
    if prediction is None:
        return False
    padded = f" {rules.normalize(prediction)} "
    return any(gold and f" {gold} " in padded for gold in map(rules.normalize, answers))


def accurate(prediction: str | None, answers: Sequence[str], rules: Rules = HOTPOTQA) -> bool:
    """Whether a prediction contains an answer, by ``rules``; one that says both yes and no answers neither."""
    if prediction is not None and rules.substring:
        return any(form in prediction for gold in answers for form in (gold, gold.lower(), gold.capitalize()))
    if {"yes", "no"} <= set(rules.normalize(prediction or "").split()):
        answers = [gold for gold in answers if rules.normalize(gold) not in ("yes", "no")]
    return contains(prediction, answers, rules)


def f1(prediction: str | None, answers: Sequence[str], rules: Rules = HOTPOTQA) -> float:
    """Return the token F1 with the best-matching answer, in [0, 1]."""
    if prediction is None:
        return 0.0
    return max((_f1(prediction, answer, rules) for answer in answers), default=0.0)


def _f1(prediction: str, answer: str, rules: Rules) -> float:
    left, right = rules.normalize(prediction), rules.normalize(answer)
    if rules.closed and left != right and {left, right} & {"yes", "no", "noanswer"}:
        return 0.0
    a, b = left.split(), right.split()
    if not a and not b:
        return rules.nothing
    shared = sum((Counter(a) & Counter(b)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(a), shared / len(b)
    return 2 * precision * recall / (precision + recall)
