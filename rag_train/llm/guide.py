"""Reading free text as the output that guided decoding would have restricted it to, for servers without it."""

from __future__ import annotations

import json
import re

from rag_train.llm.base import Sampling

MOST_PLACES = 32
"""Maximum number of places in a text at which JSON is looked for."""


def is_guided(sampling: Sampling) -> bool:
    """Whether the output is restricted."""
    return bool(sampling.json_schema or sampling.choice or sampling.regex)


def conform(text: str, sampling: Sampling) -> str | None:
    """Return the part of ``text`` that the restriction of ``sampling`` allows, None if there is none.

    For choices: the choice that the text begins with, or the only one that it names, in any case ("Yes." is "yes").
    For JSON: the first value of the schema's type, without the code fence or the words around it.
    """
    if sampling.choice:
        return _choice(text, sampling.choice)
    if sampling.json_schema:
        return _json(text, sampling.json_schema)
    if sampling.regex:
        found = re.search(sampling.regex, text)
        return found[0] if found else None
    return text


def instruct(sampling: Sampling) -> str:
    """Return the sentence that asks a model in words for what guided decoding would enforce; "" for free text."""
    if sampling.choice:
        return f"Write only one of these: {', '.join(choice.strip() for choice in sampling.choice)}."
    if sampling.json_schema:
        return f"Write only JSON of this schema: {sampling.json_schema}"
    if sampling.regex:
        return f"Write only text that matches this regular expression: {sampling.regex}"
    return ""


def _choice(text: str, choices: tuple[str, ...]) -> str | None:
    places = {choice: _place(choice.strip(), text) for choice in sorted(choices, key=len, reverse=True)}
    named = [choice for choice, place in places.items() if place is not None]
    begins = [choice for choice in named if not re.search(r"\w", text[: places[choice]])]
    return begins[0] if begins else named[0] if len(named) == 1 else None


def _place(choice: str, text: str) -> int | None:
    """Return where ``choice`` stands in ``text`` as whole words."""
    found = re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", text, re.IGNORECASE)
    return found.start() if found else None


def _json(text: str, schema: str) -> str | None:
    opening = {"object": r"\{", "array": r"\["}.get(json.loads(schema).get("type"), r'[\[{"\w-]')
    decoder = json.JSONDecoder()
    for place, _ in zip(re.finditer(opening, text), range(MOST_PLACES), strict=False):
        try:
            _, end = decoder.raw_decode(text, place.start())
        except (ValueError, RecursionError):
            continue
        return text[place.start() : end]
    return None
