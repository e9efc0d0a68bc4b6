"""Why answers are wrong: the first step at which a trajectory leaves the gold decomposition, and how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rag_train.answers import contains, normalize, rules_of
from rag_train.eval.metrics.scores import Score, align
from rag_train.schema import Question, Record, Trajectory

CAUSES = {
    "subquery": "asked in other words than the gold subquery, and answered wrongly",
    "passages": "no retrieved passage has the answer of the step",
    "reading": "a retrieved passage has the answer of the step, but the step's answer does not",
    "memory": "answered from memory, wrongly",
    "stopped early": "took fewer steps than the question has hops",
    "final answer": "all steps are right, the final answer is not",
}
"""Causes of wrong answers in the order of their tables, with what they mean."""
EXAMPLES = 3
"""Examples that are kept of each cause."""


class Wrong(Record):
    """A wrong answer: what was expected at the step that caused it, and what was found."""

    question: str
    expected: str
    found: str


class Cause(Record):
    """Wrong answers with the same cause: one of `CAUSES`, their number and the first of them."""

    cause: str
    count: int
    examples: list[Wrong]


def causes(
    questions: Sequence[Question], trajectories: Sequence[Trajectory], scores: Sequence[Score]
) -> list[Cause]:
    """Return the causes of all answers that are no exact match, in the order of `CAUSES`.

    Only questions with a gold decomposition are counted. Empty for strategies that take at most one step. Raises
    UserError as `align` does.
    """
    if all(len(trajectory.steps) < 2 for trajectory in trajectories):
        return []
    found: dict[str, list[Wrong]] = {}
    for (question, trajectory), score in zip(align(questions, trajectories), scores, strict=True):
        if question.decomposition and not score.em:
            cause, wrong = why(question, trajectory)
            found.setdefault(cause, []).append(wrong)
    return [
        Cause(cause=cause, count=len(found[cause]), examples=found[cause][:EXAMPLES])
        for cause in CAUSES
        if cause in found
    ]


def joined_causes(runs: Iterable[Sequence[Cause]]) -> list[Cause]:
    """Return the causes of several runs, added up."""
    everything = [cause for run in runs for cause in run]
    groups = [[cause for cause in everything if cause.cause == name] for name in CAUSES]
    return [
        Cause(
            cause=group[0].cause,
            count=sum(cause.count for cause in group),
            examples=[example for cause in group for example in cause.examples][:EXAMPLES],
        )
        for group in groups
        if group
    ]


def why(question: Question, trajectory: Trajectory) -> tuple[str, Wrong]:
    """Return the cause of a wrong answer, by the first step whose answer does not contain the gold step's.

    A gold step is compared with the step that asks the same, or else with the step at its place: a comparison may
    look up its two sides in either order. A subquery counts as another one if its normalised words differ and its
    answer is wrong.
    """
    steps, rules = trajectory.steps, rules_of(question)
    asked = {normalize(step.subquery): step for step in reversed(steps)}

    def wrong(expected: str, found: str | None) -> Wrong:
        return Wrong(question=question.question, expected=expected, found=found or "")

    for place, gold in enumerate(question.decomposition):
        step = asked.get(normalize(gold.subquery)) or (steps[place] if place < len(steps) else None)
        if step is None:
            return "stopped early", wrong(gold.subquery, trajectory.answer)
        answers = [gold.short]
        if contains(step.answer, answers, rules):
            continue
        if normalize(step.subquery) != normalize(gold.subquery):
            return "subquery", wrong(gold.subquery, step.subquery)
        if not step.passages:
            return "memory", wrong(gold.short, step.answer)
        if not any(contains(f"{passage.title} {passage.text}", answers, rules) for passage in step.passages):
            return "passages", wrong(gold.short, step.answer)
        return "reading", wrong(gold.short, step.answer)
    return "final answer", wrong(question.answers[0], trajectory.answer)
