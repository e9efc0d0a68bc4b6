"""Everything that is counted from trajectories: answers, costs, decisions, and how sure the numbers are.

All functions are pure. Scores and shares are fractions in [0, 1]; the tables print answers' scores in percent.
Nothing here runs a model: whatever a paper's table shows can be counted again from the trajectory file.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np

from eval.scorers import depth, optional_measures, rules_of
from rag_train.answers import contains, exact_match, f1, normalize
from rag_train.errors import UserError
from rag_train.schema import Decision, Question, Record, Step, Trajectory

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
OPTIONAL = ("success", "gold_precision", "gold_recall", "compound", "rouge2", "rouge_l", "judge")
"""Measures of a Score that not every question has (`eval.scorers`, `eval.judge`)."""


Statistic = Callable[[np.ndarray], np.ndarray]
"""Of sums over questions, of shape (..., sums), to (...)."""


class Interval(Record):
    """A mean and its two-sided 95% confidence interval, in the unit of the values."""

    mean: float
    lo: float
    hi: float


class Score(Record):
    """One question's outcome: answers' scores in [0, 1], costs as counts."""

    question_id: str
    hops: int | None
    em: float
    f1: float
    accuracy: float
    """Whether a gold answer occurs in the prediction as whole words."""
    retrievals: int
    rounds: int = 0
    steps: int
    depth: int = 0
    llm_calls: int
    critical_path: int = 0
    """Calls one after the other."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    success: float | None = None
    """Whether an answer occurs in what was retrieved; None where nothing was asked of a retriever."""
    gold_precision: float | None = None
    gold_recall: float | None = None
    """Of the retrieved passages against the gold ones."""
    compound: float | None = None
    """Share of the things asked for that the prediction holds."""
    rouge2: float | None = None
    rouge_l: float | None = None
    judge: float | None = None
    """A language model's verdict."""


class TokenUse(Record):
    """What one module of a strategy cost, on average per question."""

    calls: float
    prompt_tokens: float
    completion_tokens: float


class Counts(Record):
    """Decisions against a knowledge boundary (DeepRAG, Table 3 and appendix B.2).

    Positive means *not retrieving*, true means that the knowledge is there: a method that always retrieves has
    F1 0 and, since CoT answers 28.2% of 2WikiMultihopQA (Table 1, EM), accuracy .718, as Table 3 prints for
    IterDRAG. Measures of nothing are NaN; an MCC or F1 with a zero denominator is 0.
    """

    tp: int
    """Known, answered without retrieving."""
    fp: int
    """Unknown, answered without retrieving."""
    fn: int
    """Known, yet retrieved."""
    tn: int
    """Unknown and retrieved."""
    unmatched: int = 0
    """Steps left out because their subquery names no fact of the boundary."""

    @property
    def table(self) -> tuple[int, int, int, int]:
        """What adds up."""
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
        """Mean recall of the two classes, of the one that occurs where the other does not."""
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
        """Share retrieved of what is known: 0 is ideal."""
        return _ratio(self.fn, self.tp + self.fn)

    @property
    def retrieved_unknown(self) -> float:
        """Share retrieved of what is unknown: 1 is ideal."""
        return _ratio(self.tn, self.tn + self.fp)

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in Counts.model_fields})


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def match(questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> list[tuple[Question, Trajectory]]:
    """Each question with its trajectory, in the order of the questions.

    Raises UserError naming the ids that are doubled, that lack a trajectory or that belong to no question.
    """
    asked = Counter(question.id for question in questions)
    answered = Counter(trajectory.question_id for trajectory in trajectories)
    problems = {
        "asked twice": [id for id, count in asked.items() if count > 1],
        "answered twice": [id for id, count in answered.items() if count > 1],
        "never answered": [id for id in asked if id not in answered],
        "not among the questions": [id for id in answered if id not in asked],
    }
    found = [f"{what}: {_listed(ids)}" for what, ids in problems.items() if ids]
    if found:
        raise UserError(
            f"trajectories do not match the questions ({'; '.join(found)}); evaluate them on their own file"
        )
    by_id = {trajectory.question_id: trajectory for trajectory in trajectories}
    return [(question, by_id[question.id]) for question in questions]


def _listed(ids: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(map(repr, ids[:most])) + rest


def score(questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> list[Score]:
    """One Score per question, in the order of the questions; no answer scores 0. Raises UserError as `match`."""
    return [_score(question, trajectory) for question, trajectory in match(questions, trajectories)]


def _score(question: Question, trajectory: Trajectory) -> Score:
    rules = rules_of(question)
    return Score(
        question_id=question.id,
        hops=question.hops,
        em=float(exact_match(trajectory.answer, question.answers, rules)),
        f1=f1(trajectory.answer, question.answers, rules),
        accuracy=float(contains(trajectory.answer, question.answers, rules)),
        retrievals=trajectory.retrievals,
        rounds=trajectory.rounds,
        steps=len(trajectory.steps),
        depth=depth(trajectory),
        llm_calls=len(trajectory.calls),
        critical_path=trajectory.critical_path,
        prompt_tokens=sum(call.prompt_tokens for call in trajectory.calls),
        completion_tokens=sum(call.completion_tokens for call in trajectory.calls),
        **optional_measures(question, trajectory),
    )


def token_use(trajectories: Sequence[Trajectory]) -> dict[str, TokenUse]:
    """Calls and tokens of each module, averaged over all trajectories; modules in order of first use."""
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
    """The share of each count, ascending, gaps included: Figure 3's subqueries or retrievals per question."""
    tally = Counter(counts)
    return {i: tally[i] / tally.total() for i in range(max(tally) + 1)} if tally else {}


def boundary_by_cot(
    questions: Sequence[Question], trajectories: Sequence[Trajectory], cot: Sequence[Trajectory]
) -> Counts:
    """The paper's proxy, one decision per question: retrieving at all is right iff CoT fails (appendix B.2).

    ``cot`` are the trajectories of a run without retrieval; it knows a question iff its answer matches exactly.
    Raises UserError as `match`, for either run.
    """
    return sum(cot_counts(questions, trajectories, cot), start=Counts(tp=0, fp=0, fn=0, tn=0))


def cot_counts(
    questions: Sequence[Question], trajectories: Sequence[Trajectory], cot: Sequence[Trajectory]
) -> list[Counts]:
    """`boundary_by_cot` of each question by itself."""
    knows = [own.em == 1 for own in score(questions, cot)]
    retrieved = [trajectory.retrievals > 0 for _, trajectory in match(questions, trajectories)]
    return [_counts([pair]) for pair in zip(knows, retrieved, strict=True)]


def boundary_by_facts(trajectories: Sequence[Trajectory], known: Mapping[str, bool]) -> Counts:
    """The truth of the mini world, one decision per step: retrieving is right iff the fact is unknown.

    ``known`` maps a fact's subquery to whether the model was trained on it (`known_facts` collects it).
    Subqueries are compared after SQuAD's normalisation; a step that asks for no such fact is ``unmatched``.
    """
    return sum(fact_counts(trajectories, known), start=Counts(tp=0, fp=0, fn=0, tn=0))


def fact_counts(trajectories: Sequence[Trajectory], known: Mapping[str, bool]) -> list[Counts]:
    """`boundary_by_facts` of each trajectory by itself."""
    facts = {normalize(subquery): is_known for subquery, is_known in known.items()}
    out = []
    for trajectory in trajectories:
        named = [(facts.get(normalize(step.subquery)), step) for step in trajectory.steps]
        matched = [(is_known, step) for is_known, step in named if is_known is not None]
        counts = _counts((is_known, step.decision is Decision.RETRIEVE) for is_known, step in matched)
        out.append(counts.model_copy(update={"unmatched": len(named) - len(matched)}))
    return out


def known_facts(questions: Iterable[Question]) -> dict[str, bool]:
    """Every gold subquery of the questions whose boundary is given, with whether its fact is known."""
    return {
        gold.subquery: gold.known
        for question in questions
        for gold in question.decomposition
        if gold.known is not None
    }


def decision_is_right(step: Step, known: Mapping[str, bool]) -> bool | None:
    """Whether the step's decision respects the boundary; None where ``known`` does not say."""
    is_known = {normalize(subquery): value for subquery, value in known.items()}.get(normalize(step.subquery))
    return None if is_known is None else (step.decision is Decision.PARAMETRIC) == is_known


def _counts(decisions: Iterable[tuple[bool, bool]]) -> Counts:
    """Tally (known, retrieved) pairs."""
    tally = Counter(decisions)
    return Counts(tp=tally[True, False], fp=tally[False, False], fn=tally[True, True], tn=tally[False, True])


def bootstrap(values: Sequence[float], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """Percentile bootstrap of the mean over questions (95%).

    Takes 16 bytes per resample and value. Raises ValueError where there are no values.
    """
    if not len(values):
        raise ValueError("no values to resample")
    sample = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(sample), size=(resamples, len(sample)))
    lo, hi = np.percentile(sample[drawn].mean(axis=1), [2.5, 97.5])
    return Interval(mean=float(sample.mean()), lo=float(lo), hi=float(hi))


def paired_bootstrap(
    first: Sequence[Score], second: Sequence[Score], metric: Metric, clusters: Sequence[str] | None = None
) -> Interval:
    """The mean difference ``second - first``, questions resampled in pairs; a real one excludes 0.

    Questions that share what they are about are not independent: with ``clusters``, the name of each one's, whole
    clusters are resampled.

    Raises UserError where the runs are not over the same questions in the same order.
    """
    differences = [getattr(b, metric) - getattr(a, metric) for a, b in _pairs(first, second)]
    return cluster_bootstrap(differences, clusters)


def cluster_bootstrap(values: Sequence[float], clusters: Sequence[str] | None) -> Interval:
    """The mean of ``values``, whole clusters resampled; single values where there are none."""
    rows = np.array(values, dtype=np.float64)
    return bootstrap_of(np.stack([rows, np.ones_like(rows)], 1), mean_of, clusters)


def bootstrap_of(rows: np.ndarray, statistic: Statistic, clusters: Sequence[str] | None) -> Interval:
    """Any statistic of sums over questions, whole clusters of them resampled.

    ``rows``: what each question adds to the sums, of shape (questions, sums); ``statistic`` maps sums of shape
    (..., sums) to (...), such as `mean_of`.
    """
    sums = _by_cluster(rows, clusters)
    return _interval(statistic(_resampled(len(sums)) @ sums))


def mean_of(sums: np.ndarray) -> np.ndarray:
    """A mean: the sum of the values over their number; NaN where there are none."""
    total, count = np.moveaxis(sums, -1, 0)
    return np.divide(total, count, out=np.full(np.shape(total), math.nan), where=count != 0)


def paired_bootstrap_mcc(
    first: Sequence[Counts], second: Sequence[Counts], clusters: Sequence[str] | None = None
) -> Interval:
    """The difference in MCC, ``second - first``, resampled as in `paired_bootstrap`; ``Counts`` one a question."""
    rows = np.array([[*a.table, *b.table] for a, b in zip(first, second, strict=True)], dtype=np.float64)
    mcc = decisions_of("mcc")
    return bootstrap_of(rows, lambda sums: mcc(sums[..., 4:]) - mcc(sums[..., :4]), clusters)


def decisions_of(measure: str) -> Statistic:
    """A measure of `Counts`, of the sums of their tables."""

    def of(table: np.ndarray) -> float:
        tp, fp, fn, tn = map(int, table)
        return getattr(Counts(tp=tp, fp=fp, fn=fn, tn=tn), measure)

    return lambda sums: np.apply_along_axis(of, -1, sums)


def _by_cluster(rows: np.ndarray, clusters: Sequence[str] | None) -> np.ndarray:
    """Rows added up by cluster; as they are without."""
    if clusters is None:
        return rows
    _, which = np.unique(list(clusters), return_inverse=True)
    out = np.zeros((which.max() + 1, rows.shape[1]))
    np.add.at(out, which, rows)
    return out


def _resampled(n: int, resamples: int = 2000, seed: int = 0) -> np.ndarray:
    """How often each of ``n`` is drawn in each resample, of shape (1 + resamples, n); the sample itself first."""
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    return np.concatenate([np.ones((1, n)), drawn])


def _interval(values: np.ndarray) -> Interval:
    if np.isnan(values[0]):
        return Interval(mean=math.nan, lo=math.nan, hi=math.nan)
    lo, hi = np.nanpercentile(values[1:], [2.5, 97.5])  # a resample may hold none of what is counted
    return Interval(mean=float(values[0]), lo=float(lo), hi=float(hi))


def mcnemar(first: Sequence[Score], second: Sequence[Score]) -> float:
    """McNemar's exact two-sided p-value: do the runs answer (EM) equally many questions correctly?

    Raises UserError where the runs are not over the same questions in the same order.
    """
    only_first = sum(a.em > b.em for a, b in _pairs(first, second))
    only_second = sum(a.em < b.em for a, b in _pairs(first, second))
    n = only_first + only_second
    tail = sum(math.comb(n, i) for i in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**n)


def _pairs(first: Sequence[Score], second: Sequence[Score]) -> list[tuple[Score, Score]]:
    ids, others = [s.question_id for s in first], [s.question_id for s in second]
    if ids != others:
        differing = sorted(set(ids) ^ set(others))
        raise UserError(f"runs to be compared answer different questions: {_listed(differing) or 'other order'}")
    return list(zip(first, second, strict=True))


# Student's t, 97.5th percentile, for 1 to 10 degrees of freedom; a series takes over beyond.
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


def across_seeds(values: Sequence[float]) -> Interval:
    """Mean over seeds with its 95% t-interval. Raises ValueError for fewer than two values."""
    if len(values) < 2:
        raise ValueError("an interval across seeds needs at least two seeds")
    df = len(values) - 1
    z = NormalDist().inv_cdf(0.975)
    # Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5): within 0.1% from 11 degrees on.
    t = _T[df - 1] if df <= len(_T) else z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    mean = float(np.mean(values))
    half = t * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean=mean, lo=mean - half, hi=mean + half)
