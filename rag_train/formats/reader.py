"""The transcript of baselines that answer in one call: direct, chain of thought, retrieve-then-read.

Context: <title>: <text>          (one line per passage; none for direct and chain of thought)
Question: <question>
Thought: <reasoning>              (chain of thought only)
So the final answer is: <answer>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rag_train.formats.deeprag import FINAL, context_lines, one_line, question_prompt
from rag_train.formats.tasks import Fields
from rag_train.schema import Passage, Segment

THOUGHT = "Thought:"
_FINAL = re.compile(r"so the final answer is\s*:", re.IGNORECASE)


def fields(question: str, passages: Sequence[Passage] = ()) -> Fields:
    """Return the fields of the prompt."""
    return [("Context", passages), ("Question", question)]


def prompt(question: str, passages: Sequence[Passage] = (), *, reason: bool = False) -> str:
    """Return the prompt, to which the model adds its answer or, if ``reason`` is true, its reasoning."""
    return context_lines(passages) + question_prompt(question) + (THOUGHT if reason else FINAL)


def render(question: str, answer: str, passages: Sequence[Passage] = (), *, reasoning: str = "") -> list[Segment]:
    """Return a transcript as three segments: the prompt, the marker that begins the reply, and the reply."""
    marker = THOUGHT if reasoning else FINAL
    head = prompt(question, passages, reason=bool(reasoning)).removesuffix(marker)
    tail = f" {one_line(reasoning)}\n{FINAL} {one_line(answer)}\n" if reasoning else f" {one_line(answer)}\n"
    return [
        Segment(text=head, trained=False),
        Segment(text=marker, trained=False),
        Segment(text=tail, trained=True),
    ]


def parse(text: str, *, cut: bool = False) -> tuple[str, str | None]:
    """Split a continuation into (reasoning, answer); the answer is None if the model gave no answer.

    The last line of a text that was ``cut`` is no answer.
    """
    head, *tail = _FINAL.split(text, maxsplit=1)
    ending = "".join(tail)
    lines = ending[: ending.rfind("\n") + 1 if cut else None].strip().splitlines()
    return one_line(head), one_line(lines[0]) if lines else None
