"""Comparing short answers, as SQuAD, HotpotQA, 2WikiMultihopQA and MuSiQue score them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower case, without punctuation, articles and extra white space (SQuAD's evaluation script)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str | None, answers: Sequence[str]) -> bool:
    """Whether the normalised prediction equals any normalised answer; nothing never matches."""
    return prediction is not None and normalize(prediction) in {normalize(answer) for answer in answers}


def contains(prediction: str | None, answers: Sequence[str]) -> bool:
    """Whether any normalised, non-empty answer occurs in the normalised prediction as whole words."""
    if prediction is None:
        return False
    padded = f" {normalize(prediction)} "
    return any(gold and f" {gold} " in padded for gold in map(normalize, answers))


def f1(prediction: str | None, answers: Sequence[str]) -> float:
    """Token F1 against the best answer; yes, no and "noanswer" only match themselves (HotpotQA's script)."""
    return max((_f1(prediction, answer) for answer in answers), default=0.0) if prediction is not None else 0.0


def _f1(prediction: str, answer: str) -> float:
    left, right = normalize(prediction), normalize(answer)
    if left != right and {left, right} & {"yes", "no", "noanswer"}:
        return 0.0
    a, b = left.split(), right.split()
    shared = sum((Counter(a) & Counter(b)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(a), shared / len(b)
    return 2 * precision * recall / (precision + recall)
