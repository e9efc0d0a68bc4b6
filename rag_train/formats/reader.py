"""The transcripts of the baselines that answer at once: direct, chain of thought, passages then question.

Context: <title>: <text>          (one line per passage; none for direct and chain of thought)
Question: <question>
Thought: <reasoning>              (chain of thought only)
So the final answer is: <answer>
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_train.formats.deeprag import FINAL, context_lines, one_line, question_prompt
from rag_train.schema import Passage, Segment

THOUGHT = "Thought:"


def prompt(question: str, passages: Sequence[Passage] = (), *, reason: bool = False) -> str:
    """What the model is given; it continues with the answer (or, with ``reason``, with its thought)."""
    return context_lines(passages) + question_prompt(question) + (THOUGHT if reason else FINAL)


def render(question: str, answer: str, passages: Sequence[Passage] = (), *, reasoning: str = "") -> list[Segment]:
    """A whole transcript, prompt included, as segments; used to teach the mini model these formats."""
    head = prompt(question, passages, reason=bool(reasoning))
    tail = f" {one_line(reasoning)}\n{FINAL} {one_line(answer)}\n" if reasoning else f" {one_line(answer)}\n"
    return [Segment(text=head, trained=False), Segment(text=tail, trained=True)]


def parse(text: str) -> tuple[str, str | None]:
    """Split a continuation into (reasoning, answer); the answer is None where the model gave none."""
    head, found, tail = text.partition(FINAL)
    if not found:
        return one_line(text), None
    lines = tail.strip().splitlines()
    return one_line(head), one_line(lines[0]) if lines else None
