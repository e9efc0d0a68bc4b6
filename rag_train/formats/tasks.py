"""The one shape of a module's prompt and completion, for the systems that are made of modules.

    <instruction from prompts/, if the model is to be told>

    Question: <text>                  (labelled lines, one each; passages are "Context:" lines)
    Context: <title>: <text>
    Answer: <completion>

A completion is one line of text, one of a few choices, or JSON on a line of its own. It is asked for with guided
decoding and parsed with a parser; what does not parse is None, never an error.
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

Fields = Sequence[tuple[str, str | Sequence[str] | Sequence[Passage]]]
"""(label, value): a list of texts is a line each, a list of passages "Context:" lines whatever the label."""


@dataclass(frozen=True)
class Task:
    """What one module of a system is asked.

    Attributes:
        name: of the module, as tokens are counted under, and of its instruction in ``prompts/``.
        marker: what the completion follows.
        output: ``str`` for a line, ``Literal[...]`` for choices, any other type for JSON of that type.
        max_tokens: most tokens of a completion.
    """

    name: str
    marker: str = "Answer:"
    output: Any = str
    max_tokens: int = 64

    @property
    def is_json(self) -> bool:
        return self.output is not str and get_origin(self.output) is not Literal

    def body(self, fields: Fields) -> str:
        return "".join(_lines(label, value) for label, value in fields)

    @property
    def lead(self) -> str:
        """The marker as it stands in the prompt."""
        return f"{self.marker}\n" if self.is_json else self.marker

    def sampling(self) -> Sampling:
        if self.is_json:
            return Sampling(max_tokens=self.max_tokens, json_schema=_schema(self))
        choices = tuple(f" {choice}" for choice in get_args(self.output)) or None
        return Sampling(max_tokens=self.max_tokens, stop=("\n",), choice=choices)

    def completion(self, answer: Any) -> str:
        """``answer`` as a model is to write it. Raises ValueError if it is not of the task's type."""
        if self.output is str:
            return f" {one_line(answer)}\n"
        checked = _adapter(self).validate_python(answer)
        return f"{_adapter(self).dump_json(checked).decode()}\n" if self.is_json else f" {checked}\n"

    def render(self, fields: Fields, answer: Any) -> list[Segment]:
        """Prompt (without an instruction) and completion as a training example."""
        return [
            Segment(text=self.body(fields) + self.lead, trained=False),
            Segment(text=self.completion(answer), trained=True),
        ]

    def parse(self, text: str) -> Any:
        """A completion's value; None where it is empty, none of the choices, or not JSON of the task's type."""
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
