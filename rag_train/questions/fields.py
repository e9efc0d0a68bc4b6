"""Values in the rows of question files: answers, choices and lists, as releases, the Hub and people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rag_train.answers import UNANSWERABLE, normalize
from rag_train.rows import written_value

_PLACEHOLDER = re.compile(r"<\w[\w -]*>|\[(unk|mask|hidden|redacted)\]", re.IGNORECASE)


class NoAnswers(ValueError):
    """The row is from a split whose answers are not public."""


def accepted(*given: Any) -> list[str]:
    """Return the distinct answers that are not blank, with booleans as yes and no; ``given`` are as in `listed`.

    Raises NoAnswers if there are only placeholders, ValueError if no answer is left, TypeError if an answer is
    neither a text, a number nor a boolean.
    """
    values = [value for each in given for value in listed(each)]
    if any(isinstance(value, dict | list | tuple) for value in values):
        raise TypeError("an answer is neither a text, a number nor a boolean")
    texts = list(dict.fromkeys(filter(str.strip, map(text_of, values))))
    answers = [text for text in texts if not _PLACEHOLDER.fullmatch(text.strip())]
    if texts and not answers:
        raise NoAnswers(f"the answer is {texts[0]!r}, a placeholder: this split has no answers")
    if values and not texts and all(value is None for value in values):
        raise NoAnswers("the question has no answer (null): this split has no answers")
    if not answers:
        raise ValueError("the question has no answer")
    return answers


def listed(value: Any) -> list[Any]:
    """Return a list, a list that a text writes (see `written_value`), or a list of any other single value."""
    value = written_value(value) if isinstance(value, str) else value
    return list(value) if isinstance(value, list | tuple) else [value]


def truth(value: Any) -> Any:
    """Return the boolean that a cell of a table writes; any other value as it is."""
    return {"true": True, "false": False}.get(value.strip().lower(), value) if isinstance(value, str) else value


def text_of(value: Any) -> str:
    """Return a text, a number or a boolean as text; "" for null and for NaN, pandas' sign for a missing value."""
    if isinstance(value, bool):
        return ("no", "yes")[value]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


_FIRST = ("title", "fact", "relation")
"""The fields of the Hub's records in the order of the released lists; what is left comes last."""


def pairs(value: Any) -> list[Any]:
    """Return a list of lists; the Hub has a record of lists, in any order, or the list as a text, in its place."""
    value = written_value(value) if isinstance(value, str) else value
    if not isinstance(value, dict):
        return value
    names = sorted(value, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    return [list(pair) for pair in zip(*(value[name] for name in names), strict=True)]


def records(value: Any) -> list[dict[str, Any]]:
    """Return a list of records; the Hub has a record of lists, or the list as a text, in its place."""
    value = written_value(value) if isinstance(value, str) else value
    if isinstance(value, dict):
        return [dict(zip(value, fields, strict=True)) for fields in zip(*value.values(), strict=True)]
    return list(value or [])


def choices(value: Any) -> dict[str, str]:
    """Return the choices of a question by their letters: a list of texts or of records, or a record."""
    value = written_value(value) if isinstance(value, str) else value
    if isinstance(value, dict) and {"label", "text"} <= value.keys():
        return dict(zip(map(str, value["label"]), map(text_of, value["text"]), strict=True))
    if isinstance(value, dict):
        return {str(label): text_of(text) for label, text in value.items()}
    if value and isinstance(value[0], dict):
        return {
            str(each.get("label", each.get("key"))): text_of(each.get("text", each.get("value"))) for each in value
        }
    return {chr(ord("A") + i): text_of(text) for i, text in enumerate(value)}


def chosen(key: Any, among: Mapping[str, str]) -> str:
    """Return the letter of the right choice, which is given by its letter, its position from 0, or its text.

    Raises NoAnswers if the key is empty or -1, ValueError if it names no choice.
    """
    text, letters = text_of(key).strip(), list(among)
    if isinstance(key, bool) or text in ("", "-1") or _PLACEHOLDER.fullmatch(text):
        raise NoAnswers(f"the question has no answer (its key is {key!r}): this split has no answers")
    letter = next((letter for letter in letters if letter.lower() == text.strip("().").lower()), None)
    if letter is not None and isinstance(key, str):
        return letter
    if text.isdecimal() and int(text) < len(letters):
        return letters[int(text)]
    letter = next((letter for letter in letters if normalize(among[letter]) == normalize(text)), None)
    if letter is None:
        raise ValueError(f"the answer {text[:80]!r} is none of the choices")
    return letter


def multiple_choice(stem: str, among: Mapping[str, str], keys: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a question with choices, which become part of the question.

    The accepted answers are the texts and the letters of the right choices.
    """
    right = list(dict.fromkeys(chosen(key, among) for key in keys))
    return {
        "question": " ".join([stem, *(f"({letter}) {text}" for letter, text in among.items())]),
        "answers": accepted([*(among[letter] for letter in right), *right]),
        "metadata": {"scoring": "choice"},
    }


def unanswerable(id: Any, question: str, **more: Any) -> dict[str, Any]:
    """Return the fields of a question that has no answer, which only a refusal answers rightly."""
    metadata = {"scoring": UNANSWERABLE}
    return {"id": id, "question": question, "answers": [UNANSWERABLE], "metadata": metadata} | more


def at(value: Any, path: str) -> Any:
    """Return the value at a dotted path; a list gives the value of each of its records."""
    value = written_value(value) if isinstance(value, str) else value
    if isinstance(value, list):
        return [at(item, path) for item in value]
    name, _, rest = path.partition(".")
    return at(value[name], rest) if rest else value[name]
