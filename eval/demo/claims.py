"""The experiments' claims, stated before their runs, and the rules by which they are decided.

Settings are chosen on dev questions of dev seeds, and claims are decided on test seeds, which are run once: the
recipes name both. There are two rules.

- In the mini world, the seed (a world, its model, its training) is the unit. A claim holds if the mean of the
  seeds' differences is above the margin by Student's t test, with a level of 0.025 for each side and Holm's
  correction over the claims, and fails if it is below. One seed decides nothing: its run is placed among the
  reference seeds, whose differences are in ``reference.yaml``.
- Elsewhere all seeds ask about the same world. A claim holds if the 95% interval over all seeds' questions is above
  the margin, and the difference of every seed is; it fails if both are below. Questions about one film, person or
  place are resampled together, because they are not independent.

All else cannot be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import yaml
from scipy.special import stdtr

from rag_train.eval.metrics.intervals import Interval, across_seeds, holm
from rag_train.eval.metrics.scores import Metric, Score
from rag_train.eval.metrics.summary import RunSummary
from rag_train.schema import Question, Record

Verdict = Literal["holds", "fails", "cannot be told apart"]
REFERENCE = Path(__file__).with_name("reference.yaml")
LEVEL = 0.025
"""Level of each one-sided test."""
MARGIN = 0.02
"""The largest loss that still counts as "no worse", as a fraction: two points."""
FIRST, LAST = "cold start", "stage 2"
"""Names of the first and the last of DeepRAG's stages in the tables."""
OURS, ALWAYS = f"deeprag, {LAST}", f"deeprag-retrieve, {LAST}"
"""Names of the trained model's run, and of the same model's when it always retrieves."""
UNTUNED, TUNED = "untuned", "tuned"
"""Names of the models before and after the lessons."""


class Placed(Record):
    """A claim's difference in a run of one seed, among those of the reference seeds."""

    here: float
    seeds: list[float]
    """The difference in each reference seed."""
    margin: float

    @property
    def across(self) -> Interval:
        """The mean over the reference seeds."""
        return across_seeds(self.seeds)

    @property
    def expected(self) -> tuple[float, float]:
        """The range that contains the difference of another seed with a probability of 95%."""
        half = (self.across.hi - self.across.mean) * math.sqrt(len(self.seeds) + 1)
        return self.across.mean - half, self.across.mean + half

    @property
    def outside(self) -> bool:
        """Whether this run lies outside that range."""
        lo, hi = self.expected
        return not lo <= self.here <= hi


class Claim(Record):
    """A statement made before the run, and its outcome."""

    text: str
    verdict: str
    """holds, fails, or cannot be told apart; of the reference seeds if the claim is placed among them."""
    evidence: str
    placed: Placed | None = None

    def line(self) -> str:
        """Return the claim, its verdict and its evidence in one line for the console."""
        if not (found := self.placed):
            return f"{self.verdict}: {self.text}: {self.evidence}"
        across, outside = found.across, ", which is outside of what they let expect" if found.outside else ""
        return (
            f"{self.verdict}: {self.text}; {len(found.seeds)} reference seeds: {across.text(3, sign='+')}; "
            f"this run: {found.here:+.3f}{outside}"
        )


@dataclass(frozen=True)
class Compared:
    """The two runs that a claim compares, and the measure; the claim is that the second run's is higher."""

    first: str
    second: str
    measure: Metric | Literal["mcc"]
    unit: str
    """Name of the measure in the evidence."""
    margin: float = 0.0


CLAIMS: dict[str, Compared] = {
    "DeepRAG answers better than direct answering": Compared(f"direct, {FIRST}", OURS, "em", "exact match"),
    "DeepRAG answers better than vanilla RAG": Compared(f"rag, {FIRST}", OURS, "em", "exact match"),
    "Retrieve-only retrieves more than DeepRAG": Compared(OURS, ALWAYS, "retrievals", "retrievals a question"),
    f"DeepRAG is no less accurate than retrieve-only, to within {MARGIN:.0%}": Compared(
        ALWAYS, OURS, "em", "exact match", MARGIN
    ),
    "Stage II improves the MCC of the decisions over Stage I": Compared("deeprag, stage 1", OURS, "mcc", "MCC"),
}
"""The paper's claims (Tables 1 to 3, Figure 5) by their text. The baselines run on the cold start's model."""
MINI_WORLD_CLAIMS = CLAIMS | {
    f"DeepRAG is no less accurate than the cold start that always retrieves, to within {MARGIN:.0%}": Compared(
        f"deeprag-retrieve, {FIRST}", OURS, "em", "exact match", MARGIN
    ),
    "Stages I and II improve DeepRAG's answers": Compared(f"deeprag, {FIRST}", OURS, "em", "exact match"),
}
"""The claims of the demo in the mini world.

`CLAIMS` compares the trained model with itself where it always retrieves, and would hold for a training that makes
reading worse. The last two compare it with the model before Stages I and II.
"""
LESSONS_CLAIMS = {
    f"The lessons improve {name}'s answers": Compared(f"{name}, {UNTUNED}", f"{name}, {TUNED}", "em", "exact match")
    for name in ("deeprag", "dualrag", "hanrag", "planrag", "levelrag")
}
"""The claims about the lessons of all methods."""


def verdict(lo: float, hi: float, seeds: Sequence[float], margin: float = 0.0) -> Verdict:
    """Decide a claim about one world by the 95% interval of the difference, and by the difference in each seed.

    ``margin`` is the loss that still counts as "no worse".
    """
    if lo > -margin and min(seeds) > -margin:
        return "holds"
    return "fails" if hi < -margin and max(seeds) < -margin else "cannot be told apart"


def verdicts(seeds: Mapping[str, Sequence[float]]) -> dict[str, Verdict]:
    """Decide claims of the mini world, given the difference in each of at least two seeds."""
    bounds = [(values, -MINI_WORLD_CLAIMS[text].margin) for text, values in seeds.items()]
    above, below = (
        holm([p(values, bound) for values, bound in bounds], len(MINI_WORLD_CLAIMS)) for p in (p_above, p_below)
    )
    return {
        text: "holds" if p <= LEVEL else "fails" if contrary <= LEVEL else "cannot be told apart"
        for text, p, contrary in zip(seeds, above, below, strict=True)
    }


def p_above(values: Sequence[float], bound: float) -> float:
    """Return the one-sided p-value of the hypothesis that the mean is at most ``bound`` (Student's t test)."""
    gap, error = np.mean(values) - bound, np.std(values, ddof=1) / math.sqrt(len(values))
    return float(stdtr(len(values) - 1, -gap / error) if error else gap <= 0)


def p_below(values: Sequence[float], bound: float) -> float:
    """Return the one-sided p-value of the hypothesis that the mean is at least ``bound``."""
    return p_above([-value for value in values], -bound)


@cache
def reference() -> dict[str, list[float]]:
    """Return the difference of each reference seed, by claim."""
    return yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))


def differences(runs: Sequence[RunSummary], claims: Mapping[str, Compared]) -> dict[str, list[float]]:
    """Return each claim's difference in every seed of ``runs``; nan if no decision could be judged."""
    by_seed = {(run.name, *run.seeds): run for run in runs}
    seeds = sorted({seed for run in runs for seed in run.seeds})
    return {
        text: [
            _value(by_seed[claim.second, seed], claim) - _value(by_seed[claim.first, seed], claim) for seed in seeds
        ]
        for text, claim in claims.items()
    }


def _value(run: RunSummary, claim: Compared) -> float:
    if claim.measure == "mcc":
        return run.fact_boundary.mcc if run.fact_boundary else math.nan
    return getattr(run, claim.measure).mean


def clusters(questions: Sequence[Sequence[Question]], *, one_world: bool = False) -> list[str]:
    """Return what each question is about, for the questions of every seed in turn.

    Entities of different seeds are different, unless all seeds ask about ``one_world``.
    """
    return [
        q.decomposition[0].entity if one_world else f"{i}/{q.decomposition[0].entity}"
        for i, seed in enumerate(questions)
        for q in seed
    ]


def pooled(scores: Sequence[Sequence[Score]]) -> list[Score]:
    """Return the scores of every seed in turn, with question ids made distinct by the seed's position."""
    return [
        score.model_copy(update={"question_id": f"{i}/{score.question_id}"})
        for i, seed in enumerate(scores)
        for score in seed
    ]
