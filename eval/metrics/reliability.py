"""Reliability of the controller's probability of retrieving (not measured in the papers).

A forecast is a pair (probability of retrieving, whether the model lacks the knowledge). The knowledge boundary is
one of those in `rag_train.eval.metrics.boundary`. With the CoT boundary, all steps of a question have the same
outcome.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rag_train.answers import normalize
from rag_train.eval.metrics.boundary import normalized_facts
from rag_train.eval.metrics.scores import align, score
from rag_train.schema import Question, Record, Trajectory

BINS = 10
Forecast = tuple[float, bool]


class Bin(Record):
    """The forecasts with a probability in [lo, hi); the last bin includes its hi."""

    lo: float
    hi: float
    count: int
    probability: float
    """Mean probability of retrieving."""
    frequency: float
    """Share of the forecasts for which the knowledge is lacking; equals ``probability`` if well calibrated."""


class Reliability(Record):
    """A reliability diagram: the non-empty bins by ascending probability."""

    bins: list[Bin]
    brier: float
    """Mean squared difference of probability and outcome (Brier 1950)."""

    @property
    def count(self) -> int:
        return sum(bin.count for bin in self.bins)

    @property
    def ece(self) -> float:
        """Expected calibration error: mean distance of frequency and probability (Guo et al. 2017, equation 3)."""
        return sum(bin.count * abs(bin.frequency - bin.probability) for bin in self.bins) / self.count

    def __add__(self, other: Reliability) -> Reliability:
        """The reliability of both sets of forecasts together."""
        joined: dict[float, Bin] = {bin.lo: bin for bin in self.bins}
        for bin in other.bins:
            joined[bin.lo] = _join(joined[bin.lo], bin) if bin.lo in joined else bin
        brier = (self.count * self.brier + other.count * other.brier) / (self.count + other.count)
        return Reliability(bins=[joined[lo] for lo in sorted(joined)], brier=brier)


def reliability(forecasts: Sequence[Forecast]) -> Reliability | None:
    """Sort forecasts into `BINS` bins of equal width; None without any forecast."""
    if not forecasts:
        return None
    members: dict[int, list[Forecast]] = {}
    for probability, lacking in forecasts:
        members.setdefault(min(int(probability * BINS), BINS - 1), []).append((probability, lacking))
    return Reliability(
        bins=[
            Bin(
                lo=i / BINS,
                hi=(i + 1) / BINS,
                count=len(inside),
                probability=math.fsum(probability for probability, _ in inside) / len(inside),
                frequency=sum(lacking for _, lacking in inside) / len(inside),
            )
            for i, inside in sorted(members.items())
        ],
        brier=math.fsum((probability - lacking) ** 2 for probability, lacking in forecasts) / len(forecasts),
    )


def forecasts_by_facts(trajectories: Sequence[Trajectory], known: Mapping[str, bool]) -> list[Forecast]:
    """Return the forecast of each step that has a probability and asks for a fact of ``known``.

    ``known`` is as for `rag_train.eval.metrics.boundary.boundary_by_facts`.
    """
    facts = normalized_facts(known)
    return [
        (step.retrieve_probability, not facts[normalize(step.subquery)])
        for trajectory in trajectories
        for step in trajectory.steps
        if step.retrieve_probability is not None and normalize(step.subquery) in facts
    ]


def forecasts_by_cot(
    questions: Sequence[Question], trajectories: Sequence[Trajectory], cot: Sequence[Trajectory]
) -> list[Forecast]:
    """Return the forecast of each step that has a probability; knowledge is lacking if ``cot`` is wrong."""
    lacking = [cot_score.em < 1 for cot_score in score(questions, cot)]
    return [
        (step.retrieve_probability, lacks)
        for lacks, (_, trajectory) in zip(lacking, align(questions, trajectories), strict=True)
        for step in trajectory.steps
        if step.retrieve_probability is not None
    ]


def _join(first: Bin, second: Bin) -> Bin:
    count = first.count + second.count

    def mean(a: float, b: float) -> float:
        return (first.count * a + second.count * b) / count

    return Bin(
        lo=first.lo,
        hi=first.hi,
        count=count,
        probability=mean(first.probability, second.probability),
        frequency=mean(first.frequency, second.frequency),
    )
