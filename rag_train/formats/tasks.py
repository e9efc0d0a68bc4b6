"""The format of a module's prompt and completion, common to all systems that consist of modules.

    <instruction from prompts/, if the model needs one>

    Question: <text>                  (labelled lines; each passage is a "Context:" line)
    Context: <title>: <text>
    Answer: <completion>

A completion is a line of text, one of a few choices, or JSON on its own line. Choices and JSON are requested with
guided decoding. A completion that cannot be parsed becomes None and does not raise an error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from rag_train.formats.deeprag import context_lines, one_line
from rag_train.llm.base import Sampling
from rag_train.schema import Passage, Segment

LINE_TOKENS = 256
"""Maximum number of tokens of a line of text or a choice."""
JSON_TOKENS = 512
"""Maximum number of tokens of JSON."""
Fields = Sequence[tuple[str, str | Sequence[str] | Sequence[Passage]]]
"""Pairs (label, value). A list of texts is rendered as one line per text, a list of passages as "Context:" lines
without the label."""


@dataclass(frozen=True)
class Task:
    """The task of one module of a system.

    Attributes:
        name: name of the module, under which its tokens are counted, and of its instruction in ``prompts/``.
        marker: text before the completion.
        output: ``str`` for a line of text, ``Literal[...]`` for choices, any other type for JSON of that type.
        max_tokens: maximum number of tokens of a completion, unless a strategy or a recipe sets another; None for
            `LINE_TOKENS` or, for JSON, `JSON_TOKENS`.
    """

    name: str
    marker: str = "Answer:"
    output: Any = str
    max_tokens: int | None = None

    @property
    def is_json(self) -> bool:
        """Whether the completion is JSON."""
        return self.output is not str and get_origin(self.output) is not Literal

    def body(self, fields: Fields) -> str:
        """Return the prompt without instruction and marker."""
        return "".join(_lines(label, value) for label, value in fields)

    @property
    def lead(self) -> str:
        """The marker with the white space that follows it in the prompt."""
        return f"{self.marker}\n" if self.is_json else self.marker

    def sampling(self) -> Sampling:
        """Return greedy sampling, with guided decoding for choices and JSON."""
        if self.is_json:
            return Sampling(max_tokens=self.max_tokens or JSON_TOKENS, json_schema=_schema(self))
        choices = tuple(f" {choice}" for choice in get_args(self.output))
        return Sampling(max_tokens=self.max_tokens or LINE_TOKENS, stop=("\n",), choice=choices or None)

    def completion(self, answer: Any) -> str:
        """Return ``answer`` in the format that a model writes. Raises ValueError if it has the wrong type."""
        if self.output is str:
            return f" {one_line(answer)}\n"
        checked = _adapter(self).validate_python(answer)
        return f"{_adapter(self).dump_json(checked).decode()}\n" if self.is_json else f" {checked}\n"

    def render(self, fields: Fields, answer: Any) -> list[Segment]:
        """Return the prompt without instruction, and the completion, as the segments of a training example."""
        return [
            Segment(text=self.body(fields) + self.lead, trained=False),
            Segment(text=self.completion(answer), trained=True),
        ]

    def parse(self, text: str | None) -> Any:
        """Return a completion's value, or None if it is empty, not a choice, or not JSON of the task's type.

        ``text`` is None for a completion that was cut (`Completion.whole`), which has no value.
        """
        if text is None:
            return None
        if self.output is str:
            return one_line(text) or None
        try:
            return (
                _adapter(self).validate_json(text) if self.is_json else _adapter(self).validate_python(text.strip())
            )
        except ValidationError:
            return None


def _lines(label: str, value: str | Sequence[str] | Sequence[Passage]) -> str:
    if isinstance(value, str):
        return f"{label}: {one_line(value)}\n"
    passages = [item for item in value if isinstance(item, Passage)]
    texts = [item for item in value if isinstance(item, str)]
    return context_lines(passages) + "".join(f"{label}: {one_line(text)}\n" for text in texts)


@cache
def _adapter(task: Task) -> TypeAdapter[Any]:
    return TypeAdapter(task.output)


@cache
def _schema(task: Task) -> str:
    return json.dumps(_adapter(task).json_schema())
