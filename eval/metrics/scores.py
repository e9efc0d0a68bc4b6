"""Scores of a run: answers against the gold answers, and costs, counted from the trajectories.

Scores and shares are fractions in [0, 1]; the tables print answer scores in percent. No function of this package
runs a strategy: every table of the papers can be counted again from the trajectory file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

from pydantic import Field

from rag_train.answers import accurate, exact_match, f1
from rag_train.errors import UserError
from rag_train.eval.metrics.measures import depth, optional_measures, rules_of
from rag_train.schema import Question, Record, Trajectory

Metric = Literal[
    "em",
    "f1",
    "accuracy",
    "retrievals",
    "rounds",
    "steps",
    "depth",
    "llm_calls",
    "critical_path",
    "prompt_tokens",
    "completion_tokens",
]
METRICS: tuple[Metric, ...] = get_args(Metric)
"""Fields of `Score` that every question has."""
BEST_OF_TWO = ("best_of_two_em", "best_of_two_f1", "best_of_two_accuracy", "best_of_two_judge")
"""The better score of an answer and of a short one that a model takes from it, as DualRAG's release reports. No
other method is scored in this way: these stand beside the scores of one answer, never in their place."""
OPTIONAL = ("success", "gold_precision", "gold_recall", "compound", "rouge2", "rouge_l", "judge", *BEST_OF_TWO)
"""Fields of `Score` that only some questions have (`rag_train.eval.metrics.measures`)."""


class Score(Record):
    """Scores and costs of one question: scores in [0, 1], costs as counts."""

    question_id: str
    em: float
    f1: float
    accuracy: float
    """1 if a gold answer occurs in the prediction as whole words (PopQA: as any part), else 0. A prediction with
    both yes and no answers no yes/no question."""
    retrievals: int
    rounds: int = 0
    steps: int
    depth: int = 0
    llm_calls: int
    critical_path: int = 0
    """Length of the longest chain of calls that wait for each other."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    success: float | None = None
    """1 if a gold answer occurs in the retrieved passages, else 0; None if nothing was retrieved."""
    gold_precision: float | None = None
    """Precision of the retrieved passages against the gold passages."""
    gold_recall: float | None = None
    """Recall of the retrieved passages against the gold passages."""
    compound: float | None = None
    """Share of the requested facts that the prediction contains."""
    rouge2: float | None = None
    rouge_l: float | None = None
    judge: float | None = None
    """1 if a language model calls the answer correct, else 0."""
    best_of_two_em: float | None = None
    best_of_two_f1: float | None = None
    best_of_two_accuracy: float | None = None
    best_of_two_judge: float | None = None
    gains: list[float | None] = Field(default_factory=list)
    """Grade from 0 to 10 of the plan's subqueries up to each depth, from 1 on (PlanRAG, equation 6); None where the
    judge gave none."""


class TokenUse(Record):
    """Mean cost per question of one module of a strategy."""

    calls: float
    prompt_tokens: float
    completion_tokens: float


def align(questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> list[tuple[Question, Trajectory]]:
    """Pair each question with its trajectory, in the order of the questions.

    Raises UserError if an id is duplicated, has no trajectory or belongs to no question.
    """
    asked = Counter(question.id for question in questions)
    answered = Counter(trajectory.question_id for trajectory in trajectories)
    problems = {
        "duplicate questions": [id for id, count in asked.items() if count > 1],
        "duplicate answers": [id for id, count in answered.items() if count > 1],
        "questions without an answer": [id for id in asked if id not in answered],
        "answers without a question": [id for id in answered if id not in asked],
    }
    descriptions = [f"{problem}: {_listed(ids)}" for problem, ids in problems.items() if ids]
    if descriptions:
        raise UserError(
            f"the trajectories do not match the questions ({'; '.join(descriptions)}); give the question file of "
            "these trajectories"
        )
    by_id = {trajectory.question_id: trajectory for trajectory in trajectories}
    return [(question, by_id[question.id]) for question in questions]


def pair_scores(first: Sequence[Score], second: Sequence[Score]) -> list[tuple[Score, Score]]:
    """Pair the scores of two runs question by question.

    Raises UserError if the runs do not answer the same questions in the same order.
    """
    ids, other_ids = [score.question_id for score in first], [score.question_id for score in second]
    if ids != other_ids:
        differing = sorted(set(ids) ^ set(other_ids))
        problem = f"only one of them answers {_listed(differing)}" if differing else "their order differs"
        raise UserError(f"cannot compare runs over different questions: {problem}; answer the same question file")
    return list(zip(first, second, strict=True))


def _listed(ids: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(map(repr, ids[:most])) + rest


def score(questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> list[Score]:
    """Score each question, in the order of the questions; a missing answer scores 0.

    Raises UserError as `align` does.
    """
    return [_score(question, trajectory) for question, trajectory in align(questions, trajectories)]


def _score(question: Question, trajectory: Trajectory) -> Score:
    rules = rules_of(question)
    return Score(
        question_id=question.id,
        em=float(exact_match(trajectory.answer, question.answers, rules)),
        f1=f1(trajectory.answer, question.answers, rules),
        accuracy=float(accurate(trajectory.answer, question.answers, rules)),
        retrievals=trajectory.retrievals,
        rounds=trajectory.rounds,
        steps=len(trajectory.steps),
        depth=depth(trajectory),
        llm_calls=len(trajectory.calls),
        critical_path=trajectory.critical_path,
        prompt_tokens=sum(call.prompt_tokens for call in trajectory.calls),
        completion_tokens=sum(call.completion_tokens for call in trajectory.calls),
        gains=[],
        **optional_measures(question, trajectory),
    )


def token_use(trajectories: Sequence[Trajectory]) -> dict[str, TokenUse]:
    """Return the calls and tokens of each module, averaged over all trajectories; modules in order of first use."""
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for trajectory in trajectories:
        for call in trajectory.calls:
            total = totals[call.module]
            total[0] += 1
            total[1] += call.prompt_tokens
            total[2] += call.completion_tokens
    n = len(trajectories)
    return {
        module: TokenUse(calls=calls / n, prompt_tokens=prompt / n, completion_tokens=completion / n)
        for module, (calls, prompt, completion) in totals.items()
    }


def distribution(counts: Iterable[int]) -> dict[int, float]:
    """Return the share of each count from 0 to the highest, such as retrievals per question (DeepRAG, Figure 3)."""
    tally = Counter(counts)
    return {i: tally[i] / tally.total() for i in range(max(tally) + 1)} if tally else {}
