"""The measured rows of the papers' tables: the requests that a row stands for, their answers, and their metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import isnan

import numpy as np
from scipy.linalg import block_diag

from rag_train.eval.metrics.boundary import cot_counts, decision_statistic
from rag_train.eval.metrics.intervals import Interval, Statistic, bootstrap_of, mean_of, share_of
from rag_train.eval.metrics.measures import wording
from rag_train.eval.metrics.scores import Score, score
from rag_train.eval.metrics.summary import counted
from rag_train.eval.papers.printed import Column, PublishedTable, Row
from rag_train.eval.papers.sources import MODELS, OF_A_ROLE, START, CheckpointSource, Request
from rag_train.schema import Question, Trajectory

FIELDS = {"mean": "em", "judge": "accuracy", "input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
"""Field of a `Score` that a printed metric is measured by, if it has another name. Short answers need no judge."""

PERCENT = (*("em", "f1", "accuracy", "compound", "mean", "judge", "rouge2", "rouge_l"), "depth_share")
PERCENT += ("success", "gold_precision", "gold_recall")
"""Metrics that the tables print in percent."""

DEEP = 4
"""Depth of the papers' last class, which includes all greater depths."""

DECISIONS = ("decision_f1", "decision_accuracy", "balanced_accuracy", "mcc")
UNMEASURED = {
    "verbs": "a part-of-speech tagger",
    "information_gain": "a judge (`rag-train judge --measure information-gain`)",
    "examples": "the counts of a synthesis run",
    "route_accuracy": "questions of all four kinds",
    "error_share": "a person who reads the errors",
}
"""Metrics that cannot be counted from trajectories, and what they need."""


@dataclass(frozen=True)
class RowMeasure:
    """One metric of one row, over one or more columns."""

    requests: tuple[Request | None, ...]
    """Requests whose answers are measured; None for a request that cannot be made here."""
    metric: str
    depths: tuple[int, ...] | None = None
    """Depths of the plans that are counted; None for other metrics."""

    @classmethod
    def over(cls, measures: Sequence[RowMeasure]) -> RowMeasure:
        """Return the measure of the same row over several columns, each request once."""
        requests = dict.fromkeys(request for measure in measures for request in measure.requests)
        return replace(measures[0], requests=tuple(requests))

    def statistic(self) -> Statistic:
        """Return the function that maps the sums made by `Measurements.addends` to the metric.

        Of several requests it is the mean, like the printed averages over datasets, however many questions each
        dataset has.
        """
        of_one, count = _statistic(self.metric), len(self.requests)
        return lambda sums: of_one(sums.reshape(*sums.shape[:-1], count, -1)).mean(axis=-1)


@dataclass
class RequestAnswers:
    """The questions and trajectories of one request."""

    questions: Sequence[Question]
    trajectories: list[Trajectory]

    @cached_property
    def scores(self) -> list[Score]:
        return score(self.questions, self.trajectories)


class Measurements:
    """The answers that tables need, and their metrics. Shares are in percent."""

    def __init__(self, source: CheckpointSource):
        self.source = source
        self.answers: dict[Request, RequestAnswers] = {}

    def wanted(self, tables: Iterable[PublishedTable]) -> list[Request]:
        """Return all requests of the tables, each once, and chains of thought where they judge decisions."""
        tables = list(tables)
        wanted = dict.fromkeys(request for table in tables for request in self.requests(table))
        judged = (
            self._cot(questions)
            for table in tables
            for column in table.columns
            if column.metric in DECISIONS
            for questions in self.question_sets(column, table)
        )
        return list(wanted | dict.fromkeys(judged))

    async def run(self, tables: Iterable[PublishedTable]) -> None:
        """Answer all requests of the tables."""
        for request, trajectories in (await self.source.answers(self.wanted(tables))).items():
            self.answers[request] = RequestAnswers(self.source.questions(request.questions), trajectories)

    def refusals(self) -> Iterator[str]:
        """Yield a line for each request with questions that were refused."""
        for request, answers in self.answers.items():
            reasons = Counter(trajectory.refused for trajectory in answers.trajectories if trajectory.refused)
            if reasons:
                of = f"{reasons.total():,} of {len(answers.trajectories):,}: {counted(reasons)}"
                who = f"{request.model}, {request.strategy}, {request.questions}"
                yield f"Questions that were refused, which count as wrong: {who} ({of})."

    def question_sets(self, column: Column, table: PublishedTable) -> list[str]:
        """Return the names of the question sets that a column is measured on."""
        every = [c.dataset for c in table.columns if c.dataset] or ["hotpotqa"]
        names = [column.dataset] if column.dataset else every
        return list(dict.fromkeys(n for name in names for n in name.split("+")))

    def request(self, row: Row, table: PublishedTable, questions: str) -> Request | None:
        """Return the request that measures a row; None if the row cannot be measured here."""
        if row.strategy is None or self.missing(row):
            return None
        system = row.strategy.partition("-")[0].partition(",")[0]
        exact, general = ((name, row.trained, row.training) for name in (row.strategy, system))
        return Request(MODELS.get(exact) or MODELS.get(general) or START, row.strategy, questions)

    def requests(self, table: PublishedTable) -> Iterator[Request]:
        """Yield the requests of a table, column by column."""
        for column in table.columns:
            for row, questions in product(table.rows, self.question_sets(column, table)):
                if found := self.request(row, table, questions):
                    yield found

    def measure(self, row: Row, column: Column, table: PublishedTable) -> RowMeasure:
        """Return what is measured for a row in a column."""
        requests = [self.request(row, table, questions) for questions in self.question_sets(column, table)]
        depths = row.depths or column.depths
        return RowMeasure(tuple(requests), column.metric, tuple(depths) if depths else None)

    def missing(self, row: Row) -> str:
        """Return why there is no measure of a row here, with any answers; empty if there is one."""
        if row.model:
            return f"no model here stands for {row.model}"
        if row.strategy is None:
            return "no strategy of rag-train answers like this row"
        system = row.strategy.partition("-")[0].partition(",")[0]
        return "one role has a model of its own" if (system, row.trained, row.training) in OF_A_ROLE else ""

    def unmeasured(self, measure: RowMeasure) -> str:
        """Return why a measure has no value; empty if it has."""
        if measure.metric in UNMEASURED:
            return f"{measure.metric} needs {UNMEASURED[measure.metric]}"
        return "" if self.answered(measure) else "no answers"

    def interval(self, measure: RowMeasure) -> Interval:
        """Return a metric's value with its interval over the questions."""
        rows, statistic, scale = self.addends(measure), measure.statistic(), _scale(measure.metric)
        if measure.metric in PERCENT:
            sums = rows.sum(axis=0)
            value, count = float(statistic(sums)), float(sums[1::2].sum())  # after each total its count
            interval = share_of(value * count, 0.0 if isnan(value) else count)
        else:
            interval = bootstrap_of(rows, statistic, None)
        return interval.scaled(scale)

    def answered(self, measure: RowMeasure) -> bool:
        """Whether there are answers to all requests of a measure."""
        return all(request in self.answers for request in measure.requests)

    def difference(self, first: RowMeasure, second: RowMeasure) -> Interval:
        """Return the first measure minus the second, with its interval over the questions.

        Questions about one film or person are resampled together.
        """
        a, b = self.addends(first), self.addends(second)
        # Both measures' sums share one row, so that all values of a cluster are drawn together.
        width, rows = a.shape[1], block_diag(a, b)
        x, y = first.statistic(), second.statistic()
        clusters = [*self._clusters(first), *self._clusters(second)]
        difference = bootstrap_of(rows, lambda sums: x(sums[..., :width]) - y(sums[..., width:]), clusters)
        return difference.scaled(_scale(first.metric))

    def addends(self, measure: RowMeasure) -> np.ndarray:
        """Return what each question adds to the sums of a metric, of shape (questions, sums).

        Each request has sums of its own, which `RowMeasure.statistic` reads.
        """
        return block_diag(*(self._addends(measure, request) for request in measure.requests if request))

    def _addends(self, measure: RowMeasure, request: Request) -> np.ndarray:
        answers = self.answers[request]
        asked, answered, scores = answers.questions, answers.trajectories, answers.scores
        match measure.metric:
            case "decision_f1" | "decision_accuracy" | "balanced_accuracy" | "mcc":
                cot = self.answers[self._cot(request.questions)].trajectories
                rows = [counts.table for counts in cot_counts(asked, answered, cot)]
            case "retrievals_correct" | "retrievals_incorrect":
                right = measure.metric == "retrievals_correct"
                rows = [(s.retrievals, 1) if bool(s.em) is right else (0, 0) for s in scores]
            case "depth_share" | "depth_count":
                rows = [(min(s.depth, DEEP) in (measure.depths or ()), 1) for s in scores]
            case "wh_words" | "pronouns" | "conjunctions":
                which = ("wh_words", "pronouns", "conjunctions").index(measure.metric)
                rows = [(classes[which], n) for n, *classes in map(wording, answered)]
            case metric:
                values = [getattr(s, FIELDS.get(metric, metric)) for s in scores]
                rows = [(value or 0, value is not None) for value in values]
        return np.array(rows, dtype=np.float64)

    def _cot(self, questions: str) -> Request:
        """Return the request for the answers that show what the model knows (DeepRAG, Table 3)."""
        return Request(START, "cot", questions)

    def _clusters(self, measure: RowMeasure) -> Iterator[str]:
        for request in filter(None, measure.requests):
            for question in self.answers[request].questions:
                yield (question.decomposition[0].entity if question.decomposition else "") or question.id


def _statistic(metric: str) -> Statistic:
    """Return the function that maps the sums of one request to the metric."""
    if metric in DECISIONS:
        return decision_statistic(metric.removeprefix("decision_"))
    return mean_of if metric != "depth_count" else lambda sums: sums[..., 0]


def _scale(metric: str) -> float:
    return 100.0 if metric in PERCENT else 1.0
