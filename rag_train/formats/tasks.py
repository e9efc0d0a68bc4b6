"""The format of a module's prompt and completion, common to all systems that consist of modules.

    <instruction from prompts/, if the model needs one (`rag_train.formats.instructions`)>

    Question: <text>                  (labelled lines; each passage is a "Context:" line)
    Context: <title>: <text>
    Answer: <completion>

A completion is a line of text, one of a few choices, or JSON on its own line. Choices and JSON are requested with
guided decoding. A completion that cannot be parsed becomes None and does not raise an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from rag_train.formats.deeprag import context_lines, one_line
from rag_train.formats.instructions import LINES, Given, Instruction
from rag_train.llm.base import Sampling
from rag_train.schema import Passage, Segment

LINE_TOKENS = 256
"""Maximum number of tokens of a line of text or a choice."""
JSON_TOKENS = 512
"""Maximum number of tokens of JSON."""
Fields = Sequence[tuple[str, str | Sequence[str] | Sequence[Passage]]]
"""Pairs (label, value). A list of texts is rendered as one line per text, a list of passages as "Context:" lines
without the label."""


class Released(NamedTuple):
    """The format of a completion that the released prompts of a method's authors ask for.

    It is read, beside ours, if the instruction is a user's.

    Attributes:
        output: type of the JSON; ``str`` for text of any number of lines.
        read: returns a task's value for a value of this type; None if it has none.
    """

    output: Any
    read: Callable[[Any], Any]


@dataclass(frozen=True)
class Task:
    """The task of one module of a system.

    Attributes:
        name: name of the module, under which its tokens are counted, and of its instruction in ``prompts/``.
        marker: text before the completion.
        output: ``str`` for a line of text, ``Literal[...]`` for choices, any other type for JSON of that type.
        max_tokens: maximum number of tokens of a completion, unless a strategy or a recipe sets another; None for
            `LINE_TOKENS` or, for JSON, `JSON_TOKENS`.
        released: format of the authors' own prompts, if it differs.
    """

    name: str
    marker: str = "Answer:"
    output: Any = str
    max_tokens: int | None = None
    released: Released | None = None

    @property
    def is_json(self) -> bool:
        """Whether the completion is JSON."""
        return self.output is not str and get_origin(self.output) is not Literal

    @property
    def lead(self) -> str:
        """The marker with the white space that follows it in the prompt."""
        return f"{self.marker}\n" if self.is_json else self.marker

    def sampling(self, instruction: Instruction | None = None) -> Sampling:
        """Return greedy sampling, with guided decoding for choices and JSON, after an ``instruction``."""
        most = self.max_tokens or JSON_TOKENS
        if self.released and instruction and instruction.own:
            is_text = self.released.output is str
            return Sampling(max_tokens=most, json_schema=None if is_text else _schema(self, released=True))
        if self.is_json:
            return Sampling(max_tokens=most, json_schema=_schema(self))
        space = "" if instruction and instruction.whole else " "
        choices = tuple(f"{space}{choice}" for choice in get_args(self.output))
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
            Segment(text=body(fields) + self.lead, trained=False),
            Segment(text=self.completion(answer), trained=True),
        ]

    def parse(self, text: str | None, instruction: Instruction | None = None) -> Any:
        """Return a completion's value, or None if it is empty, not a choice, or not JSON of the task's type.

        ``text`` is None for a completion that was cut (`Completion.whole`), which has no value. After a user's
        ``instruction``, the released format is read, too.
        """
        if text is None:
            return None
        if self.released and instruction and instruction.own:
            kind = TypeAdapter(self.released.output)
            with suppress(ValidationError):
                value = kind.validate_python(text) if self.released.output is str else kind.validate_json(text)
                if (read := self.released.read(value)) is not None:
                    return read
        if self.output is str:
            return one_line(text) or None
        try:
            return (
                _adapter(self).validate_json(text) if self.is_json else _adapter(self).validate_python(text.strip())
            )
        except ValidationError:
            return None


def body(fields: Fields) -> str:
    """Return the fields in labelled lines, which follow the instruction."""
    return "".join(_lines(label, value) for label, value in fields)


def user_turn(instructions: Given, name: str, fields: Fields) -> str:
    """Return the prompt up to the beginning of the reply: the instruction of this name and the fields.

    An empty ``name`` stands for no instruction.
    """
    if not (name and instructions):
        return body(fields)
    instruction = instructions[name]
    if instruction.whole:
        return instruction.filled(_values(instruction, fields))
    return f"{instruction.text}\n\n{body(fields)}"


def _values(instruction: Instruction, fields: Fields) -> dict[str, str]:
    """Return the values of an instruction's fields: their lines without labels."""
    values: dict[str, list[str]] = {}
    for label, value in fields:
        for line in _lines(label, value).splitlines():
            written, _, text = line.partition(": ")
            field = re.sub(r"\W", "_", written.removesuffix(":").lower())
            known = field in instruction.fields
            values.setdefault(field if known else LINES, []).append(text if known else line)
    assert values.keys() <= set(instruction.fields), f"{instruction.name}: {sorted(values)}"
    return {field: "\n".join(lines) for field, lines in values.items()}


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
def _schema(task: Task, *, released: bool = False) -> str:
    """Return the schema of a task's JSON, or of that and of the released JSON."""
    both = TypeAdapter(task.output | task.released.output) if released and task.released else _adapter(task)
    return json.dumps(both.json_schema())
