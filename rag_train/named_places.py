"""The parser of ``NAME=PLACE`` in options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

from rag_train.errors import UserError

T = TypeVar("T")
_NAME = re.compile(r'[^/("]*')


def named(option: str, text: str) -> tuple[str, str]:
    """Split ``NAME=PLACE`` into name and place; the name is "" if there is none.

    A name contains no slash, parenthesis or quotation mark, so that an equals sign inside a place does not matter.

    Raises:
        UserError: if there is nothing after the equals sign; the message begins with ``option``.
    """
    name, equals, place = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        return "", text
    if not place:
        raise UserError(f"{option} {text}: nothing after the equals sign; write NAME=PLACE")
    return name, place


def named_places(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Return places by name. Raises UserError if a text is not NAME=PLACE or a name is repeated."""
    pairs = [named(option, text) for text in texts]
    for text, (name, _) in zip(texts, pairs, strict=True):
        if not name:
            raise UserError(f"{option} {text}: the name is missing; write NAME=PLACE")
    return by_name(option, pairs)


def by_name(option: str, pairs: Sequence[tuple[str, T]]) -> dict[str, T]:
    """Return the pairs as a dictionary. Raises UserError if a name is repeated."""
    names = [name for name, _ in pairs]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{option}: the name {repeated!r} is given twice; write NAME=PLACE with different names")
    return dict(pairs)
