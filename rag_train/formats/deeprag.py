"""The DeepRAG transcript (section 3.2, "Answer format"), rendered and parsed.

    Question: <question>
    Follow up: <subquery>
    Let's search the question in Wikipedia.
    Context: <title>: <text>                  (one line per passage)
    Intermediate answer: <answer>
    Follow up: <subquery>
    Intermediate answer: <answer>             (no search line: answered from parametric knowledge)
    So the final answer is: <answer>

A marker counts only at the start of a line and everything inserted is flattened to one line, so no passage
and no answer can pretend to be a step. What the controller writes is trained; what the harness writes (the
question, the passages and the "Intermediate answer:" that follows them) is masked (section 3.3).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rag_train.schema import Decision, Passage, Segment, Step

QUESTION = "Question:"
FOLLOW_UP = "Follow up:"
SEARCH = "Let's search the question in Wikipedia."
CONTEXT = "Context:"
INTERMEDIATE = "Intermediate answer:"
FINAL = "So the final answer is:"

STOP_LINE = ["\n"]
"""Ends the generation of a single line: a subquery, an answer."""

STOP_SEARCH = ["\n" + CONTEXT, "\n" + QUESTION, SEARCH]
"""Ends adaptive generation where the harness has to act."""

_SPACE = re.compile(r"\s+")
_MARKER = re.compile(
    r"\s*(?:(?P<follow>follow[ -]?up\s*:)|(?P<search>let['\u2019]?s search the question (?:in|on) wikipedia\.?)"
    r"|(?P<context>context\s*:)|(?P<intermediate>intermediate answer\s*:)"
    r"|(?P<final>so the final answer is\s*:)|(?P<question>question\s*:))",
    re.IGNORECASE,
)


def one_line(text: str) -> str:
    """Collapse every run of white space, so that the text cannot start a line of its own."""
    return _SPACE.sub(" ", text).strip()


def question_prompt(question: str) -> str:
    return f"{QUESTION} {one_line(question)}\n"


def subquery_line(subquery: str) -> str:
    return f"{FOLLOW_UP} {one_line(subquery)}\n"


def context_lines(passages: Sequence[Passage]) -> str:
    lines = (": ".join(filter(None, (one_line(p.title), one_line(p.text)))) for p in passages)
    return "".join(f"{CONTEXT} {line}\n" for line in lines)


def parametric_prompt(subquery: str) -> str:
    """What follows the history where the subquery is to be answered from parametric knowledge."""
    return subquery_line(subquery) + INTERMEDIATE


def retrieved_prompt(subquery: str, passages: Sequence[Passage]) -> str:
    """What follows the history where the subquery is to be answered from passages."""
    return f"{subquery_line(subquery)}{SEARCH}\n{context_lines(passages)}{INTERMEDIATE}"


def decision_snippet(decision: Decision) -> str:
    """The text by which the controller announces its decision: what Stage II prefers (section 3.4)."""
    return SEARCH if decision is Decision.RETRIEVE else INTERMEDIATE


def render_step(step: Step) -> list[Segment]:
    answer = f" {one_line(step.answer)}\n"
    if step.decision is Decision.PARAMETRIC:
        return [Segment(text=parametric_prompt(step.subquery) + answer, trained=True)]
    return [
        Segment(text=f"{subquery_line(step.subquery)}{SEARCH}\n", trained=True),
        Segment(text=context_lines(step.passages) + INTERMEDIATE, trained=False),
        Segment(text=answer, trained=True),
    ]


def render(steps: Sequence[Step], answer: str | None = None) -> list[Segment]:
    """The transcript after the question. Without ``answer`` it is left open, ready to go on.

    Adjacent segments with the same flag are joined, so that the boundaries are those of the mask.
    """
    segments = [segment for step in steps for segment in render_step(step)]
    if answer is not None:
        segments.append(Segment(text=f"{FINAL} {one_line(answer)}\n", trained=True))
    joined: list[Segment] = []
    for segment in segments:
        if joined and joined[-1].trained == segment.trained:
            joined[-1] = Segment(text=joined[-1].text + segment.text, trained=segment.trained)
        else:
            joined.append(segment)
    return joined


def text_of(steps: Sequence[Step], answer: str | None = None) -> str:
    return "".join(segment.text for segment in render(steps, answer))


@dataclass
class Parsed:
    """What a transcript says. ``open_subquery`` is set where it ends inside a step, ``wants_search`` where
    that step has asked to retrieve; ``problems`` lists every line that did not fit the grammar."""

    steps: list[Step] = field(default_factory=list)
    answer: str | None = None
    open_subquery: str | None = None
    wants_search: bool = False
    problems: list[str] = field(default_factory=list)


def parse(text: str) -> Parsed:
    """Parse a transcript (without its question line), however malformed.

    Never raises: what fits the grammar becomes steps, the rest is reported in ``problems``. Text after the
    final answer, and after a second "Question:" (a base model running on), is ignored.
    """
    out = Parsed()
    passages: list[Passage] = []

    def close(answer: str) -> None:
        assert out.open_subquery is not None
        decision = Decision.RETRIEVE if out.wants_search else Decision.PARAMETRIC
        out.steps.append(
            Step(subquery=out.open_subquery, decision=decision, passages=list(passages), answer=answer)
        )
        out.open_subquery, out.wants_search = None, False
        passages.clear()

    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        match = _MARKER.match(line)
        kind = match.lastgroup if match else None
        body = one_line(line[match.end() :]) if match else ""
        if kind == "question":
            break
        if kind == "final":
            if out.open_subquery is not None:
                out.problems.append(f"line {number}: final answer inside an unanswered step")
                out.open_subquery, out.wants_search = None, False
            if body:
                out.answer = body
            else:
                out.problems.append(f"line {number}: empty final answer")
            break
        if kind == "follow":
            if out.open_subquery is not None:
                out.problems.append(f"line {number}: the previous subquery has no answer")
                passages.clear()
            out.open_subquery, out.wants_search = body or None, False
            if not body:
                out.problems.append(f"line {number}: empty subquery")
        elif kind is None:
            out.problems.append(f"line {number}: no marker")
        elif out.open_subquery is None:
            out.problems.append(f"line {number}: {kind} outside a step")
        elif kind == "search":
            out.wants_search = True
        elif kind == "context":
            if not out.wants_search:
                out.problems.append(f"line {number}: context without a search")
                continue
            title, colon, rest = body.partition(": ")
            passages.append(Passage(id="", title=title if colon else "", text=rest if colon else body))
        elif body:
            close(body)
        else:
            out.problems.append(f"line {number}: empty intermediate answer")
    return out
