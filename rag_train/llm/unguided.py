"""Reading free text as the output that guided decoding would have restricted it to, for servers without it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from rag_train.llm.base import Sampling
from rag_train.llm.thoughts import after_thoughts

_OPENING = re.compile(r"[\[{]")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]|"', re.DOTALL)
"""A string, an opening or a closing bracket of JSON, or the quotation mark of a string without an end."""


def conform(text: str, sampling: Sampling) -> str | None:
    """Return the part of ``text`` that the restriction of ``sampling`` allows, None if there is none.

    Thoughts are left out, and a text that ends within a thought has no such part.

    For choices: the only choice that the text names, at its beginning or end, in any case ("Yes." is "yes").
    For JSON: the only value of the schema, without the code fence or the words around it. Inner values are not
    taken, so that JSON that was cut or has an error is none. For regular expressions: the whole text.
    """
    said = after_thoughts(text)
    if said is None:
        return None
    if sampling.choice:
        return _choice(said, sampling.choice)
    if sampling.json_schema:
        return _json(said, json.loads(sampling.json_schema))
    if sampling.regex:
        return _matching(said, sampling.regex, sampling.stop)
    return said


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
    """Return the choice that the text consists of, begins with or ends with; None if it names another one too."""
    named = {choice.strip(): choice for choice in choices if _names(text, choice.strip())}
    longest = [name for name in named if not any(name in other for other in named.keys() - {name})]
    if len(longest) != 1:
        return None
    only = rf"\W*{re.escape(longest[0])}"
    begins = rf"{only}\s*(?:[^\w\s-]|\n).*"
    ends = rf".*(?:[^\w\s'-]|\n|\b(?:is|be)\b(?: an?)?){only}\W*"
    fits = re.fullmatch(rf"{only}\W*|{begins}|{ends}", text, re.IGNORECASE | re.DOTALL)
    return named[longest[0]] if fits else None


def _names(text: str, choice: str) -> bool:
    """Whether ``choice`` stands in ``text`` as whole words; a single letter only in its own case."""
    return bool(re.search(rf"(?<!\w){re.escape(choice)}(?!\w)", text, re.IGNORECASE if len(choice) > 1 else 0))


def _json(text: str, schema: Mapping[str, Any]) -> str | None:
    """Return the only text in ``text`` that is JSON of the schema, None if there is none or another."""
    try:
        found = {json.dumps(value): part for part, value in _values(text) if _fits(value, schema, schema)}
    except (ValueError, RecursionError):
        return None
    return next(iter(found.values())) if len(found) == 1 else None


def _values(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the text if it is JSON, or else the outermost objects and arrays in it, with their values.

    Brackets around what is no JSON are left out with all that they enclose.

    Raises ValueError if the text ends within brackets.
    """
    with suppress(ValueError):
        yield text.strip(), json.loads(text)
        return
    at = 0
    while opening := _OPENING.search(text, at):
        try:
            value, at = json.JSONDecoder().raw_decode(text, opening.start())
            yield text[opening.start() : at], value
        except ValueError:
            at = _end(text, opening.start())


def _end(text: str, start: int) -> int:
    """Return where the brackets that open at ``start`` are closed. Raises ValueError if they are not."""
    depth = 0
    for match in _BRACKETS.finditer(text, start):
        depth += (match[0] in "[{") - (match[0] in "]}")
        if not depth:
            return match.end()
    raise ValueError("no end of the brackets")


def _fits(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Whether a value is one of a JSON schema, as pydantic writes schemas."""
    if "$ref" in schema:
        return _fits(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return any(_fits(value, each, root) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    match schema.get("type"):
        case "array":
            return isinstance(value, list) and all(_fits(item, schema.get("items", {}), root) for item in value)
        case "object":
            parts = schema.get("properties", {})
            return (
                isinstance(value, dict)
                and value.keys() >= set(schema.get("required", ()))
                and all(_fits(item, parts.get(name, {}), root) for name, item in value.items())
            )
        case "integer" | "number" as kind:
            return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)
        case "string" | "boolean" | "null" as kind:
            return isinstance(value, {"string": str, "boolean": bool, "null": type(None)}[kind])
    return True


def _matching(text: str, regex: str, stops: tuple[str, ...]) -> str | None:
    """Return the text if all of it matches; white space around it, and the stop string that ended it, may lack."""
    for body in (text, text.strip(), f" {text.strip()}"):
        if any(re.fullmatch(regex, body + end) for end in ("", "\n", *stops)):
            return body
    return None
