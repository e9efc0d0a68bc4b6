"""The one parser of ``NAME=PLACE`` in options."""

from __future__ import annotations

import re

from rag_train.errors import UserError

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
