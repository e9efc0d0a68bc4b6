"""Confidence intervals and significance tests, over questions or over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import stdtrit

from rag_train.eval.metrics.scores import Metric, Score, pair_scores
from rag_train.schema import Record

Statistic = Callable[[np.ndarray], np.ndarray]
"""A function of sums over questions: maps an array of shape (..., sums) to one of shape (...)."""


class Interval(Record):
    """A mean and its two-sided 95% confidence interval, in the unit of the values."""

    mean: float
    lo: float
    hi: float

    def text(self, digits: int, scale: float = 1, sign: str = "") -> str:
        """Return the mean with the interval in brackets; ``sign`` is "+" to write the sign of positive numbers."""
        mean, lo, hi = (f"{scale * value:{sign}.{digits}f}" for value in (self.mean, self.lo, self.hi))
        return f"{mean} [{lo}, {hi}]"

    def scaled(self, scale: float) -> Interval:
        """Return the interval in another unit."""
        return Interval(mean=scale * self.mean, lo=scale * self.lo, hi=scale * self.hi)


def bootstrap(values: Sequence[float], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """Return the percentile bootstrap interval (95%) of the mean over questions.

    Needs 16 bytes of memory per resample and value. Raises ValueError if ``values`` is empty.
    """
    if not len(values):
        raise ValueError("no values to resample")
    sample = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(sample), size=(resamples, len(sample)))
    lo, hi = np.percentile(sample[drawn].mean(axis=1), [2.5, 97.5])
    return Interval(mean=float(sample.mean()), lo=float(lo), hi=float(hi))


def share(values: Sequence[float]) -> Interval:
    """Return Wilson's interval of the mean of values in [0, 1].

    It lies within [0, 1], and is not empty if all values are equal. For values between 0 and 1, such as F1, it is
    wider than necessary: of all values with their mean, zeros and ones vary the most.

    Raises ValueError if ``values`` is empty.
    """
    if not len(values):
        raise ValueError("no values")
    return share_of(float(np.sum(values)), len(values))


def share_of(total: float, count: float) -> Interval:
    """Return the interval of `share` from the sum of the values and their count; NaN if the count is 0."""
    if not count:
        return Interval(mean=math.nan, lo=math.nan, hi=math.nan)
    mean = min(1.0, float(total) / float(count))
    lo, hi = wilson(mean, count)
    return Interval(mean=mean, lo=lo, hi=hi)


def wilson(p: float, n: float) -> tuple[float, float]:
    """Return the ends of the 95% interval of a proportion ``p`` of ``n`` (Wilson 1927)."""
    z2 = 1.959964**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, min(p, middle - half)), min(1.0, max(p, middle + half))  # rounding may exclude p


def paired_bootstrap(
    first: Sequence[Score], second: Sequence[Score], metric: Metric, clusters: Sequence[str] | None = None
) -> Interval:
    """Return the interval of the mean difference ``second - first``; a significant difference excludes 0.

    Questions are resampled in pairs. Questions about the same subject are not independent: if ``clusters`` names
    the cluster of each question, whole clusters are resampled.

    Raises UserError if the runs do not answer the same questions in the same order.
    """
    differences = [getattr(b, metric) - getattr(a, metric) for a, b in pair_scores(first, second)]
    return cluster_bootstrap(differences, clusters)


def cluster_bootstrap(values: Sequence[float], clusters: Sequence[str] | None) -> Interval:
    """Return the interval of the mean of ``values``; resamples whole clusters, or values without clusters."""
    rows = np.array(values, dtype=np.float64)
    return bootstrap_of(np.stack([rows, np.ones_like(rows)], 1), mean_of, clusters)


def bootstrap_of(rows: np.ndarray, statistic: Statistic, clusters: Sequence[str] | None) -> Interval:
    """Return the bootstrap interval of any statistic of sums over questions.

    Args:
        rows: the addends of each question, of shape (questions, sums).
        statistic: maps sums of shape (..., sums) to values of shape (...), as `mean_of` does.
        clusters: the cluster of each question, to resample whole clusters; None to resample questions.
    """
    sums = _by_cluster(rows, clusters)
    return _interval(statistic(_resampled(len(sums)) @ sums))


def mean_of(sums: np.ndarray) -> np.ndarray:
    """Return the mean from the sum of the values and their count; NaN if the count is 0."""
    total, count = np.moveaxis(sums, -1, 0)
    return np.divide(total, count, out=np.full(np.shape(total), math.nan), where=count != 0)


def _by_cluster(rows: np.ndarray, clusters: Sequence[str] | None) -> np.ndarray:
    """Add up the rows of each cluster; without clusters, return the rows."""
    if clusters is None:
        return rows
    _, cluster_index = np.unique(list(clusters), return_inverse=True)
    sums = np.zeros((cluster_index.max() + 1, rows.shape[1]))
    np.add.at(sums, cluster_index, rows)
    return sums


def _resampled(n: int, resamples: int = 2000, seed: int = 0) -> np.ndarray:
    """Return how often each resample draws each of ``n`` rows, of shape (1 + resamples, n).

    Row 0 is the sample itself: each row once.
    """
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    return np.concatenate([np.ones((1, n)), drawn])


def _interval(values: np.ndarray) -> Interval:
    if np.isnan(values[0]):
        return Interval(mean=math.nan, lo=math.nan, hi=math.nan)
    lo, hi = np.nanpercentile(values[1:], [2.5, 97.5])  # a resample may draw no question that counts
    return Interval(mean=float(values[0]), lo=float(lo), hi=float(hi))


def mcnemar(first: Sequence[Score], second: Sequence[Score]) -> float:
    """Return McNemar's exact two-sided p-value; the null hypothesis is that both runs have the same EM.

    Raises UserError if the runs do not answer the same questions in the same order.
    """
    pairs = pair_scores(first, second)
    only_first = sum(a.em > b.em for a, b in pairs)
    only_second = sum(a.em < b.em for a, b in pairs)
    n = only_first + only_second
    tail = sum(math.comb(n, i) for i in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**n)


def across_seeds(values: Sequence[float]) -> Interval:
    """Return the mean over seeds with Student's t interval (95%): the seed is the unit.

    The variance between seeds contains that of entities and questions within a seed, so one number per seed is
    enough. Raises ValueError for fewer than two values.
    """
    n = len(values)
    if n < 2:
        raise ValueError("an interval across seeds needs at least two seeds")
    mean, half = float(np.mean(values)), float(stdtrit(n - 1, 0.975) * np.std(values, ddof=1)) / math.sqrt(n)
    return Interval(mean=mean, lo=mean - half, hi=mean + half)


def share_across_seeds(values: Sequence[float]) -> Interval:
    """Return the interval of `across_seeds` for values in [0, 1], within these bounds."""
    interval = across_seeds(values)
    return Interval(mean=interval.mean, lo=max(0.0, interval.lo), hi=min(1.0, interval.hi))


def holm(p_values: Sequence[float], size: int | None = None) -> list[float]:
    """Return the p-values adjusted for ``size`` hypotheses (Holm 1979), by default as many as p-values.

    The hypotheses whose p-values are not given count as not rejected.
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(np.argsort(p_values, kind="stable").tolist()):
        highest = max(highest, min(1.0, ((size or len(p_values)) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted
