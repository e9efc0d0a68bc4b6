"""Summaries of runs: one `RunSummary` per strategy, training stage and seed, and their pooling across seeds.

All tables and plots are made from summaries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import add
from statistics import fmean
from typing import Any

from pydantic import Field

from rag_train.eval.metrics.boundary import DecisionCounts, boundary_by_cot, boundary_by_facts
from rag_train.eval.metrics.causes import Cause, causes, joined_causes
from rag_train.eval.metrics.intervals import Interval, across_seeds, bootstrap, share, share_across_seeds
from rag_train.eval.metrics.measures import wording
from rag_train.eval.metrics.reliability import (
    Reliability,
    forecasts_by_cot,
    forecasts_by_facts,
    reliability,
)
from rag_train.eval.metrics.scores import OPTIONAL, Score, TokenUse, distribution, score, token_use
from rag_train.schema import Question, Record, Trajectory


class Part(Record):
    """Results on the questions with a number of hops, or of a type."""

    name: str
    questions: int
    em: Interval
    f1: Interval
    retrievals: Interval


class Wording(Record):
    """Mean number of WH-words, pronouns and conjunctions per subquery (DeepRAG, Figure 4)."""

    wh: float
    pronouns: float | None = None
    """None in results from before they were counted."""
    conjunctions: float


class RunSummary(Record):
    """Results of one strategy at one stage of training on one question set: a row of every table.

    Intervals of a single seed are over questions, Wilson's for shares and bootstrapped for other means; intervals
    of several seeds (`pool`) are t-intervals across seeds, of shares within [0, 1]. A field is None if it has no
    values, such as without correct answers or without a known boundary.
    """

    strategy: str
    stage: str = ""
    seeds: list[int]
    questions: int
    em: Interval
    f1: Interval
    accuracy: Interval
    retrievals: Interval
    retrievals_correct: Interval | None
    retrievals_incorrect: Interval | None
    steps: float
    llm_calls: float
    errors: float
    """Number of questions that were refused; they are scored as wrong."""
    refused: dict[str, float] = Field(default_factory=dict)
    """The same number by reason."""
    unjudged: dict[str, float] = Field(default_factory=dict)
    """Number of answers that the judge refused, by reason; they count as wrong."""
    nothing_found: float = 0.0
    """Number of questions that were searched for and for which no passage was found."""
    unparsed: float = 0.0
    """Number of trajectories in which a module's text did not parse."""
    cut: float = 0.0
    """Number of trajectories in which the token limit cut a module's text."""
    asked_again: float = 0.0
    """Number of trajectories in which a missing answer was asked for once more, in a call that the method lacks."""
    tokens: dict[str, TokenUse]
    parts: list[Part] = Field(default_factory=list)
    """Results by number of hops, then by type of question."""
    subqueries: dict[int, float]
    """Share of questions by number of subqueries (Figure 3a)."""
    retrieval_counts: dict[int, float]
    """Share of questions by number of retrievals (Figure 3b)."""
    cot_boundary: DecisionCounts | None = None
    fact_boundary: DecisionCounts | None = None
    measures: dict[str, Interval] = Field(default_factory=dict)
    """Rounds and tokens per question, and each measure of `OPTIONAL` over the questions it applies to."""
    depths: dict[int, float] = Field(default_factory=dict)
    """Share of questions by reasoning depth (PlanRAG, Table 1 and Figure 4b)."""
    plans: dict[int, float] = Field(default_factory=dict)
    """Number of plans that reach a depth, if a judge was asked for grades, which ``measures["gain_1"]`` and so on
    have."""
    graded: dict[int, float] = Field(default_factory=dict)
    """Number of those plans that the judge graded."""
    wording: Wording | None = None
    cot_calibration: Reliability | None = None
    """Reliability against the CoT boundary. Saved summaries use this field name."""
    fact_calibration: Reliability | None = None
    """Reliability against the boundary of facts."""
    causes: list[Cause] = Field(default_factory=list)
    """Why answers are wrong; empty without gold decompositions or without steps."""

    @property
    def name(self) -> str:
        return f"{self.strategy}, {self.stage}" if self.stage else self.strategy

    @property
    def refusals(self) -> str:
        """How many questions were refused, and why; empty if none was."""
        of = f"{self.errors:.0f} of {self.questions:,}"
        return ": ".join(filter(None, [of, counted(self.refused)])) if self.errors else ""


def counted(reasons: Mapping[str, float]) -> str:
    """Return counts by reason in words."""
    return ", ".join(f"{reason} {count:.0f}" for reason, count in sorted(reasons.items()))


def summarize(
    questions: Sequence[Question],
    trajectories: Sequence[Trajectory],
    *,
    strategy: str,
    stage: str = "",
    seed: int = 0,
    cot: Sequence[Trajectory] | None = None,
    known: Mapping[str, bool] | None = None,
    scores: Sequence[Score] | None = None,
) -> RunSummary:
    """Summarise one run; correct means an exact match, as in DeepRAG's Table 2.

    ``cot`` are trajectories without retrieval, for the CoT boundary, and ``known`` facts by subquery, for the
    boundary of facts. Raises UserError if the ids of questions and trajectories do not match.
    """
    scores = score(questions, trajectories) if scores is None else scores
    right = [s.retrievals for s in scores if s.em]
    wrong = [s.retrievals for s in scores if not s.em]
    return RunSummary(
        strategy=strategy,
        stage=stage,
        seeds=[seed],
        questions=len(scores),
        em=share([s.em for s in scores]),
        f1=share([s.f1 for s in scores]),
        accuracy=share([s.accuracy for s in scores]),
        retrievals=bootstrap([s.retrievals for s in scores]),
        retrievals_correct=bootstrap(right) if right else None,
        retrievals_incorrect=bootstrap(wrong) if wrong else None,
        steps=sum(s.steps for s in scores) / len(scores),
        llm_calls=sum(s.llm_calls for s in scores) / len(scores),
        errors=sum(t.error is not None for t in trajectories),
        refused=dict(Counter(t.refused for t in trajectories if t.refused)),
        nothing_found=sum(t.retrievals > 0 and not any(step.passages for step in t.steps) for t in trajectories),
        unparsed=sum(t.unparsed for t in trajectories),
        cut=sum(t.cut for t in trajectories),
        asked_again=sum(t.asked_again for t in trajectories),
        tokens=token_use(trajectories),
        parts=_parts(questions, scores),
        subqueries=distribution(s.steps for s in scores),
        retrieval_counts=distribution(s.retrievals for s in scores),
        cot_boundary=None if cot is None else boundary_by_cot(questions, trajectories, cot),
        fact_boundary=None if known is None else boundary_by_facts(trajectories, known),
        measures=measure_intervals(scores),
        depths=distribution(s.depth for s in scores),
        wording=_wording(trajectories),
        cot_calibration=None if cot is None else reliability(forecasts_by_cot(questions, trajectories, cot)),
        fact_calibration=None if known is None else reliability(forecasts_by_facts(trajectories, known)),
        causes=causes(questions, trajectories, scores),
    )


def measure_intervals(scores: Sequence[Score]) -> dict[str, Interval]:
    """Return the intervals of ``RunSummary.measures``; measures that no score has are absent."""
    columns = {
        name: [value for s in scores if (value := getattr(s, name)) is not None]
        for name in ("rounds", "prompt_tokens", "completion_tokens", *OPTIONAL)
    }
    deepest = max(len(score.gains) for score in scores)
    columns |= {f"gain_{depth}": graded for depth in range(1, deepest + 1) if (graded := grades(scores, depth))}
    return {name: (share if name in OPTIONAL else bootstrap)(of) for name, of in columns.items() if of}


def grades(scores: Sequence[Score], depth: int) -> list[float]:
    """Return the grades of the plans that reach a depth, without those that the judge did not grade."""
    return [gain for s in scores if len(s.gains) >= depth and (gain := s.gains[depth - 1]) is not None]


def grade_counts(scores: Sequence[Score]) -> dict[str, dict[int, float]]:
    """Return ``RunSummary.plans`` and ``RunSummary.graded``."""
    reached = Counter(depth for s in scores for depth in range(1, len(s.gains) + 1))
    return {
        "plans": {depth: float(count) for depth, count in sorted(reached.items())},
        "graded": {depth: float(len(grades(scores, depth))) for depth in sorted(reached)},
    }


def _wording(trajectories: Sequence[Trajectory]) -> Wording | None:
    counts = [wording(trajectory) for trajectory in trajectories]
    subqueries, *classes = (sum(column) for column in zip(*counts, strict=True))
    if not subqueries:
        return None
    wh, pronouns, conjunctions = (count / subqueries for count in classes)
    return Wording(wh=wh, pronouns=pronouns, conjunctions=conjunctions)


def _parts(questions: Sequence[Question], scores: Sequence[Score]) -> list[Part]:
    """Return the results by number of hops, and by type if there are several."""
    pairs = list(zip(questions, scores, strict=True))
    hops = sorted({question.hops for question in questions if question.hops is not None})
    groups = {f"{n} hop{'s' * (n != 1)}": [s for q, s in pairs if q.hops == n] for n in hops}
    types = sorted({question.type for question in questions if question.type})
    if len(types) > 1:
        groups |= {f"type {name}": [s for q, s in pairs if q.type == name] for name in types}
    return [
        Part(
            name=name,
            questions=len(of),
            em=share([s.em for s in of]),
            f1=share([s.f1 for s in of]),
            retrievals=bootstrap([s.retrievals for s in of]),
        )
        for name, of in groups.items()
    ]


def pool(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Join the seeds of each (strategy, stage), in order of first appearance.

    Values are averaged; `DecisionCounts`, `Reliability` and causes are added up.
    """
    groups: dict[tuple[str, str], list[RunSummary]] = {}
    for run in runs:
        groups.setdefault((run.strategy, run.stage), []).append(run)
    return [_join(group) if len(group) > 1 else group[0] for group in groups.values()]


MEANS = ("steps", "llm_calls", "errors", "nothing_found", "unparsed", "cut", "asked_again")
COUNTS = ("refused", "unjudged", "subqueries", "retrieval_counts", "depths", "plans", "graded")
SUMS = ("cot_boundary", "fact_boundary", "cot_calibration", "fact_calibration")
"""Fields that are joined over seeds by their means, by their means for each key, and by their sums."""


def _join(runs: Sequence[RunSummary]) -> RunSummary:
    def each(name: str) -> list[Any]:
        return [getattr(run, name) for run in runs]

    common = [name for name in runs[0].measures if all(name in run.measures for run in runs)]
    words = [run.wording for run in runs if run.wording]
    joined: dict[str, Any] = {name: fmean(each(name)) for name in MEANS}
    joined |= {name: _mean_by_key(each(name)) for name in COUNTS}
    joined |= {name: _sum([value for value in each(name) if value]) for name in SUMS}
    joined |= {name: _share_across(each(name)) for name in ("em", "f1", "accuracy")}
    for name in ("retrievals", "retrievals_correct", "retrievals_incorrect"):
        joined[name] = None if None in each(name) else _across(each(name))
    if words:
        counted_in_all = [n for n in Wording.model_fields if all(getattr(w, n) is not None for w in words)]
        joined["wording"] = Wording(**{n: fmean(getattr(w, n) for w in words) for n in counted_in_all})
    return RunSummary(
        strategy=runs[0].strategy,
        stage=runs[0].stage,
        seeds=[seed for run in runs for seed in run.seeds],
        questions=runs[0].questions,
        tokens=_mean_tokens(runs),
        parts=_pooled_parts(each("parts")),
        measures={
            name: (_share_across if name in OPTIONAL else _across)([run.measures[name] for run in runs])
            for name in common
        },
        causes=joined_causes(each("causes")),
        **joined,
    )


def _pooled_parts(seeds: Sequence[Sequence[Part]]) -> list[Part]:
    """Return each part over the seeds that have such questions."""
    groups: dict[str, list[Part]] = {}
    for part in chain.from_iterable(seeds):
        groups.setdefault(part.name, []).append(part)
    return [_joined_parts(groups[name]) for name in sorted(groups)]


def _joined_parts(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    return Part(
        name=parts[0].name,
        questions=parts[0].questions,
        em=_share_across([part.em for part in parts]),
        f1=_share_across([part.f1 for part in parts]),
        retrievals=_across([part.retrievals for part in parts]),
    )


def _across(intervals: Sequence[Interval]) -> Interval:
    return across_seeds([interval.mean for interval in intervals])


def _share_across(intervals: Sequence[Interval]) -> Interval:
    return share_across_seeds([interval.mean for interval in intervals])


def _sum(values: Sequence[Any]) -> Any:
    return reduce(add, values) if values else None


def _mean_by_key(counts: Sequence[dict[Any, float]]) -> dict[Any, float]:
    return {key: fmean(each.get(key, 0.0) for each in counts) for key in sorted(set().union(*counts))}


def _mean_tokens(runs: Sequence[RunSummary]) -> dict[str, TokenUse]:
    means: dict[str, TokenUse] = {}
    for module in dict.fromkeys(module for run in runs for module in run.tokens):
        uses = [run.tokens[module] for run in runs if module in run.tokens]
        sums = {name: sum(getattr(use, name) for use in uses) for name in TokenUse.model_fields}
        means[module] = TokenUse(**{name: total / len(runs) for name, total in sums.items()})
    return means
