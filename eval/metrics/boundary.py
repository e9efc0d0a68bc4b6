"""Decisions to retrieve, compared with the knowledge boundary: what the model knows without retrieval.

The boundary has two definitions. "CoT": the model knows a question if its chain of thought without retrieval
answers it exactly (DeepRAG, appendix B.2). "Facts": the model knows a fact if its training text contains it (mini
world), or if its answers to several prompts were measured to agree and to be right (atlas).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rag_train.answers import normalize
from rag_train.eval.metrics.intervals import Interval, Statistic, bootstrap_of
from rag_train.eval.metrics.scores import align, score
from rag_train.schema import Decision, Question, Record, Step, Trajectory


class DecisionCounts(Record):
    """Confusion matrix of decisions and a knowledge boundary (DeepRAG, Table 3 and appendix B.2).

    The positive class is *not retrieving*; a decision is true if it agrees with the boundary. A method that always
    retrieves has F1 0 and, since CoT answers 28.2% of 2WikiMultihopQA (Table 1, EM), accuracy .718, as Table 3
    prints for IterDRAG. Measures without any decision are NaN; an MCC or F1 with a zero denominator is 0.
    """

    tp: int
    """Known and not retrieved."""
    fp: int
    """Unknown and not retrieved."""
    fn: int
    """Known and retrieved."""
    tn: int
    """Unknown and retrieved."""
    unmatched: int = 0
    """Steps left out because their subquery asks for no fact of the boundary."""

    @property
    def table(self) -> tuple[int, int, int, int]:
        """The four cells of the confusion matrix."""
        return self.tp, self.fp, self.fn, self.tn

    @property
    def total(self) -> int:
        return sum(self.table)

    @property
    def f1(self) -> float:
        if not self.total:
            return math.nan
        return 2 * self.tp / max(1, 2 * self.tp + self.fp + self.fn)

    @property
    def accuracy(self) -> float:
        return _ratio(self.tp + self.tn, self.total)

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the two classes; if only one class occurs, its recall."""
        recalls = [_ratio(self.tp, self.tp + self.fn), _ratio(self.tn, self.tn + self.fp)]
        present = [recall for recall in recalls if not math.isnan(recall)]
        return _ratio(sum(present), len(present))

    @property
    def mcc(self) -> float:
        """Matthews correlation coefficient, in [-1, 1]."""
        if not self.total:
            return math.nan
        tp, fp, fn, tn = self.tp, self.fp, self.fn, self.tn
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        return (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0

    @property
    def retrieved_known(self) -> float:
        """Share of the known cases that were retrieved; the ideal is 0."""
        return _ratio(self.fn, self.tp + self.fn)

    @property
    def retrieved_unknown(self) -> float:
        """Share of the unknown cases that were retrieved; the ideal is 1."""
        return _ratio(self.tn, self.tn + self.fp)

    def __add__(self, other: DecisionCounts) -> DecisionCounts:
        fields = DecisionCounts.model_fields
        return DecisionCounts(**{name: getattr(self, name) + getattr(other, name) for name in fields})


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def boundary_by_cot(
    questions: Sequence[Question], trajectories: Sequence[Trajectory], cot: Sequence[Trajectory]
) -> DecisionCounts:
    """Count one decision per question: retrieving at all is right if CoT fails (DeepRAG, appendix B.2).

    ``cot`` are the trajectories of a run without retrieval. Raises UserError as `align` does, for either run.
    """
    return sum(cot_counts(questions, trajectories, cot), start=DecisionCounts(tp=0, fp=0, fn=0, tn=0))


def cot_counts(
    questions: Sequence[Question], trajectories: Sequence[Trajectory], cot: Sequence[Trajectory]
) -> list[DecisionCounts]:
    """Return the counts of `boundary_by_cot` for each question."""
    knows = [cot_score.em == 1 for cot_score in score(questions, cot)]
    retrieved = [trajectory.retrievals > 0 for _, trajectory in align(questions, trajectories)]
    return [_counts([pair]) for pair in zip(knows, retrieved, strict=True)]


def boundary_by_facts(trajectories: Sequence[Trajectory], known: Mapping[str, bool]) -> DecisionCounts:
    """Count one decision per step: retrieving is right if the fact is unknown to the model.

    ``known`` maps the subquery of a fact to whether the model was trained on the fact (`known_facts` collects
    them). Subqueries are compared after SQuAD's normalisation; other steps are counted as ``unmatched``.
    """
    return sum(fact_counts(trajectories, known), start=DecisionCounts(tp=0, fp=0, fn=0, tn=0))


def fact_counts(trajectories: Sequence[Trajectory], known: Mapping[str, bool]) -> list[DecisionCounts]:
    """Return the counts of `boundary_by_facts` for each trajectory."""
    facts = normalized_facts(known)
    counts = []
    for trajectory in trajectories:
        steps = [(facts.get(normalize(step.subquery)), step) for step in trajectory.steps]
        matched = [(is_known, step) for is_known, step in steps if is_known is not None]
        decisions = _counts((is_known, step.decision is Decision.RETRIEVE) for is_known, step in matched)
        counts.append(decisions.model_copy(update={"unmatched": len(steps) - len(matched)}))
    return counts


def known_facts(questions: Iterable[Question]) -> dict[str, bool]:
    """Return, for each gold subquery with a known boundary, whether the model knows its fact."""
    return {
        gold.subquery: gold.known
        for question in questions
        for gold in question.decomposition
        if gold.known is not None
    }


def normalized_facts(known: Mapping[str, bool]) -> dict[str, bool]:
    """Return ``known`` with SQuAD-normalised subqueries."""
    return {normalize(subquery): is_known for subquery, is_known in known.items()}


def decision_is_right(step: Step, known: Mapping[str, bool]) -> bool | None:
    """Return whether the decision of ``step`` agrees with ``known``; None if ``known`` lacks the step's fact."""
    is_known = normalized_facts(known).get(normalize(step.subquery))
    return None if is_known is None else (step.decision is Decision.PARAMETRIC) == is_known


def paired_bootstrap_mcc(
    first: Sequence[DecisionCounts], second: Sequence[DecisionCounts], clusters: Sequence[str] | None = None
) -> Interval:
    """Return the interval of the difference in MCC, ``second - first``, from the counts of each question.

    Resamples as `rag_train.eval.metrics.intervals.paired_bootstrap` does.
    """
    rows = np.array([[*a.table, *b.table] for a, b in zip(first, second, strict=True)], dtype=np.float64)
    mcc = decision_statistic("mcc")
    return bootstrap_of(rows, lambda sums: mcc(sums[..., 4:]) - mcc(sums[..., :4]), clusters)


def decision_statistic(measure: str) -> Statistic:
    """Return the statistic that computes ``measure``, a property of `DecisionCounts`, from sums of their tables."""

    def value(table: np.ndarray) -> float:
        tp, fp, fn, tn = map(int, table)
        return getattr(DecisionCounts(tp=tp, fp=fp, fn=fn, tn=tn), measure)

    return lambda sums: np.apply_along_axis(value, -1, sums)


def _counts(decisions: Iterable[tuple[bool, bool]]) -> DecisionCounts:
    """Tally (known, retrieved) pairs."""
    tally = Counter(decisions)
    return DecisionCounts(
        tp=tally[True, False], fp=tally[False, False], fn=tally[True, True], tn=tally[False, True]
    )
