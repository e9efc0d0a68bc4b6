"""Comparison of short answers, with the rules of each dataset's released evaluation script (`RULES`)."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rag_train.errors import UserError
from rag_train.schema import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_TRIVIA_PUNCTUATION = str.maketrans({mark: " " for mark in string.punctuation + "‘’´"})


_CHOICE = re.compile(r"(?:.*\b(?:answer|choice|option)\b\s*(?:is\b)?\s*:?)?\s*[(\[]?([A-Z])[)\].:]*", re.I | re.S)
_CHOICE_WITH_TEXT = re.compile(r"[(\[]?([A-Z])[)\].:]+\s*(?=\S)")
_REFUSAL = re.compile(
    r"\b(?:unanswerable|unknown|no ?answer|not answerable|can ?not (?:be )?(?:answer|determin)\w*"
    r"|cant (?:be )?(?:answer|determin)\w*|(?:do not|dont) know"
    r"|(?:not enough|insufficient|no|not contain) (?:\w+ )?(?:information|evidence|context))\b"
)
_AROUND_A_REFUSAL = re.compile(
    r"(?:i|im|we|it|is|are|was|be|this|that|there|questions?|to|answer|answered|on|in|from|with|by|about|based|so|sorry"
    r"|given|provided|passages?|contexts?|text|documents?|does|do| )*"
)


def composed(text: str) -> str:
    """Return the text in Unicode's form NFC, in which a letter and its accent are one character."""
    return unicodedata.normalize("NFC", text)


def normalize(text: str) -> str:
    """Convert to lower case and remove punctuation, articles and extra white space (SQuAD's evaluation script).

    The script compares code points; here, the two ways of writing an accent are the same.
    """
    return " ".join(_ARTICLES.sub(" ", composed(text).lower().translate(_PUNCTUATION)).split())


def normalize_trivia(text: str) -> str:
    """Normalize like `normalize`, but replace punctuation and curly quotation marks by spaces.

    This is the rule of TriviaQA's evaluation script.
    """
    return " ".join(_ARTICLES.sub(" ", composed(text).lower().translate(_TRIVIA_PUNCTUATION)).split())


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
    pattern: bool = False
    """Whether answers are regular expressions: an exact one matches the prediction's beginning, F1 is EM."""
    choice: bool = False
    """Whether an answer of one letter names a choice: "C", "(C)" and "The answer is C." are right, and so is the
    choice's text, with or without its letter. The letter inside a longer text is no answer."""
    refusal: bool = False
    """Whether the right prediction is empty or refuses to answer ("unanswerable", "I don't know."); F1 is EM."""


HOTPOTQA = Rules(closed=True)
UNANSWERABLE = "unanswerable"
"""Scoring of a question without an answer, and its only accepted answer."""
RULES = {
    "hotpotqa": HOTPOTQA,  # hotpot_evaluate_v1.py; 2WikiMultihopQA's and FlashRAG's are the same
    "popqa": Rules(closed=True, substring=True),  # run_model.py, which has no EM and no F1: they are HotpotQA's
    "musique": Rules(nothing=1.0),  # metrics/answer.py, evaluate_v1.0.py
    "squad": Rules(),  # evaluate-v1.1.py; Natural Questions and KILT are scored with it, too
    "triviaqa": Rules(normalize=normalize_trivia),  # evaluation/triviaqa_evaluation.py
    "curatedtrec": Rules(pattern=True),  # DrQA's scripts/reader and retriever evaluation
    "choice": Rules(choice=True),  # ours
    UNANSWERABLE: Rules(refusal=True),  # ours
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
    if prediction is None:
        return False
    if rules.refusal:
        rest, refusals = _REFUSAL.subn("", normalize(prediction))
        return not prediction.strip() or (refusals > 0 and _AROUND_A_REFUSAL.fullmatch(rest) is not None)
    if rules.pattern:
        return any(_pattern(answer).match(composed(prediction.strip())) for answer in answers)
    if rules.choice:
        letters, answers = _letters_and_texts(answers)
        if named := _CHOICE.fullmatch(prediction.strip()):
            return named[1].upper() in letters
        if (named := _CHOICE_WITH_TEXT.match(prediction.strip())) and named[1].upper() in letters:
            prediction = prediction.strip()[named.end() :]
    return rules.normalize(prediction) in set(map(rules.normalize, answers))


def contains(prediction: str | None, answers: Sequence[str], rules: Rules = HOTPOTQA) -> bool:
    """Whether a normalized, non-empty answer occurs in the normalized prediction as whole words."""
    if prediction is None:
        return False
    if rules.refusal:
        return not prediction.strip() or bool(_REFUSAL.search(normalize(prediction)))
    if rules.pattern:
        return any(_pattern(answer).search(composed(prediction)) for answer in answers)
    if rules.choice:
        answers = _letters_and_texts(answers)[1]
    padded = f" {rules.normalize(prediction)} "
    return any(gold and f" {gold} " in padded for gold in map(rules.normalize, answers))


def either_contains(prediction: str | None, answers: Sequence[str], rules: Rules = HOTPOTQA) -> bool:
    """Whether the prediction contains an answer or, by rules that compare words, an answer contains the prediction.

    This is how DeepRAG's release accepts the trajectories of Stage I; there, also parts of words count.
    """
    if contains(prediction, answers, rules) or prediction is None or rules.refusal or rules.pattern or rules.choice:
        return contains(prediction, answers, rules)
    return any(contains(gold, [prediction], rules) for gold in answers)


def accurate(prediction: str | None, answers: Sequence[str], rules: Rules = HOTPOTQA) -> bool:
    """Whether a prediction contains an answer, by ``rules``; one that says both yes and no answers neither."""
    if prediction is not None and rules.substring:
        prediction, answers = composed(prediction), list(map(composed, answers))
        return any(form in prediction for gold in answers for form in (gold, gold.lower(), gold.capitalize()))
    if rules.choice and prediction is not None and exact_match(prediction, answers, rules):
        return True
    if {"yes", "no"} <= set(rules.normalize(prediction or "").split()):
        answers = [gold for gold in answers if rules.normalize(gold) not in ("yes", "no")]
    return contains(prediction, answers, rules)


def f1(prediction: str | None, answers: Sequence[str], rules: Rules = HOTPOTQA) -> float:
    """Return the token F1 with the best-matching answer, in [0, 1]."""
    if prediction is None:
        return 0.0
    if exact_match(prediction, answers, rules) and (rules.choice or rules.pattern or rules.refusal):
        return 1.0
    if rules.pattern or rules.refusal:
        return 0.0
    if rules.choice:
        answers = _letters_and_texts(answers)[1]
    return max((_f1(prediction, answer, rules) for answer in answers), default=0.0)


def _letters_and_texts(answers: Sequence[str]) -> tuple[set[str], list[str]]:
    """Divide the answers to a question with choices into letters, in upper case, and texts."""
    letters = {answer.upper() for answer in answers if len(answer) == 1 and answer.isalpha()}
    return letters, [answer for answer in answers if answer.upper() not in letters]


@lru_cache(10_000)
def _pattern(answer: str) -> re.Pattern[str]:
    """Compile an answer as DrQA's scripts do; text that is no regular expression stands for itself."""
    try:
        return re.compile(composed(answer), re.IGNORECASE | re.MULTILINE)
    except re.error:
        return re.compile(re.escape(composed(answer)), re.IGNORECASE)


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
