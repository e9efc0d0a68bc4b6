"""Small trajectories for tests of metrics and pages."""

from __future__ import annotations

from typing import Any

from rag_train.schema import Decision, LLMCall, Question, Step, Trajectory

EVIL = "<script>alert(1)</script>"


def step(subquery: str = "s", decision: str = "retrieve", **fields: Any) -> Step:
    return Step(subquery=subquery, decision=Decision(decision), **fields)


def trajectory(*steps: Step, **fields: Any) -> Trajectory:
    """Return a trajectory of question "q" with ``steps``; ``fields`` replace its other fields."""
    defaults = {"question_id": "q", "question": "?", "strategy": "s", "steps": list(steps)}
    return Trajectory.model_validate(defaults | fields)


def with_decisions(id: str, answer: str | None, *decisions: Decision) -> Trajectory:
    """Return a trajectory whose step number n asks for "fact n?"."""
    steps = [Step(subquery=f"fact {n}?", decision=decision, answer="x") for n, decision in enumerate(decisions)]
    calls = [LLMCall(module="controller", prompt_tokens=10, completion_tokens=2)]
    return trajectory(*steps, question_id=id, answer=answer, calls=calls)


QUESTIONS = [
    Question(id="1", question="q", answers=["The Hague", "Den Haag"], hops=2),
    Question(id="2", question="q", answers=["yes"], hops=2),
    Question(id="3", question=EVIL, answers=[EVIL], hops=3),
]
RUN = [
    with_decisions("3", None, Decision.RETRIEVE, Decision.RETRIEVE),
    with_decisions("1", "den haag.", Decision.PARAMETRIC),
    with_decisions("2", "yes it is", Decision.RETRIEVE),
]
COT = [with_decisions("1", "Den Haag"), with_decisions("2", "no"), with_decisions("3", "no")]
