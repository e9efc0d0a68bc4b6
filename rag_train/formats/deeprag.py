"""The DeepRAG transcript (section 3.2, "Answer format"), rendered and parsed.

    Question: <question>
    Follow up: <subquery>
    Let's search the question in Wikipedia.
    Context: <title>: <text>                  (one line per passage)
    Intermediate answer: <answer>
    Follow up: <subquery>
    Intermediate answer: <answer>             (no search line: answered from parametric knowledge)
    So the final answer is: <answer>

A marker is recognized only at the start of a line, and all inserted texts are reduced to one line, so that a
passage or an answer cannot be mistaken for a step. The text that the controller writes is trained. The text that
the harness writes (the question, the passages, and the "Intermediate answer:" after them) is masked (section 3.3).
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
"""Stop strings for the generation of a single line, such as a subquery or an answer."""

STOP_SEARCH = ["\n" + CONTEXT, "\n" + QUESTION, SEARCH]
"""Stop strings for adaptive generation, at the points where the harness has to act."""

_LINE = r" [^\s][^\n]*\n"

MOVE = f"(Follow up:{_LINE}|So the final answer is:{_LINE})"
"""Regular expression of the controller's next move, for guided decoding."""

ANSWER = _LINE
"""Regular expression of an answer after its marker, for guided decoding."""

TURN = (
    f"(Follow up:{_LINE}Intermediate answer:{_LINE})*"
    rf"(Follow up:{_LINE}Let's search the question in Wikipedia\.|So the final answer is:{_LINE})"
)
"""Regular expression of what the controller writes until the harness has to search or the transcript ends."""

_SPACE = re.compile(r"\s+")
_MARKER = re.compile(
    r"\s*(?:(?P<follow>follow[ -]?up\s*:)|(?P<search>let['\u2019]?s search the question (?:in|on) wikipedia\.?)"
    r"|(?P<context>context\s*:)|(?P<intermediate>intermediate answer\s*:)"
    r"|(?P<final>so the final answer is\s*:)|(?P<question>question\s*:))",
    re.IGNORECASE,
)


def one_line(text: str) -> str:
    """Replace each run of white space by one space, so that the text cannot begin a new line."""
    return _SPACE.sub(" ", text).strip()


def question_prompt(question: str) -> str:
    """Return the question's line, with which every transcript begins."""
    return f"{QUESTION} {one_line(question)}\n"


def subquery_line(subquery: str) -> str:
    """Return the "Follow up:" line of a subquery."""
    return f"{FOLLOW_UP} {one_line(subquery)}\n"


def context_lines(passages: Sequence[Passage]) -> str:
    """Return a "Context:" line for each passage."""
    lines = (": ".join(filter(None, (one_line(p.title), one_line(p.text)))) for p in passages)
    return "".join(f"{CONTEXT} {line}\n" for line in lines)


def parametric_prompt(subquery: str) -> str:
    """Return the text after the history that asks for an answer from parametric knowledge."""
    return subquery_line(subquery) + INTERMEDIATE


def retrieved_prompt(subquery: str, passages: Sequence[Passage]) -> str:
    """Return the text after the history that asks for an answer from the passages."""
    return f"{subquery_line(subquery)}{SEARCH}\n{context_lines(passages)}{INTERMEDIATE}"


def decision_snippet(decision: Decision) -> str:
    """Return the text with which the controller announces its decision, on which Stage II trains (section 3.4)."""
    return SEARCH if decision is Decision.RETRIEVE else INTERMEDIATE


def render_step(step: Step) -> list[Segment]:
    """Return the segments of one step."""
    answer = f" {one_line(step.answer)}\n"
    if step.decision is Decision.PARAMETRIC:
        return [Segment(text=parametric_prompt(step.subquery) + answer, trained=True)]
    return [
        Segment(text=f"{subquery_line(step.subquery)}{SEARCH}\n", trained=True),
        Segment(text=context_lines(step.passages) + INTERMEDIATE, trained=False),
        Segment(text=answer, trained=True),
    ]


def render(steps: Sequence[Step], answer: str | None = None) -> list[Segment]:
    """Return the transcript after the question's line, without a final answer if ``answer`` is None.

    Adjacent segments with the same flag are joined, so that the flag changes at every boundary.
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
    """Return the text of the transcript that `render` returns as segments."""
    return "".join(segment.text for segment in render(steps, answer))


@dataclass
class Parsed:
    """The content of a transcript."""

    steps: list[Step] = field(default_factory=list)
    """Steps in order; the answer of a step that was left without one is empty."""
    answer: str | None = None
    """Final answer; None if there is none."""
    open_subquery: str | None = None
    """Subquery of a last step without an answer."""
    wants_search: bool = False
    """Whether the last step without an answer asks to retrieve."""
    problems: list[str] = field(default_factory=list)
    """Descriptions of the lines that do not fit the grammar."""


def parse(text: str) -> Parsed:
    """Parse a transcript without its question line.

    Malformed text is not an error: lines that do not fit the grammar are reported in ``problems``. Text after the
    final answer is ignored, and so is text after a "Question:", with which a base model may begin a new transcript.
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
                close("")
            if body:
                out.answer = body
            else:
                out.problems.append(f"line {number}: empty final answer")
            break
        if kind == "follow":
            if out.open_subquery is not None:
                out.problems.append(f"line {number}: the previous subquery has no answer")
                close("")
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
