"""The demo's claims over the reference seeds, whose results are in the documentation.

A newcomer's demo is one seed, and one seed cannot decide a claim. ``reference.yaml`` has each claim's effect in
every reference seed; ``docs/generate.py`` writes it from the results file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from scipy.special import stdtrit

from rag_train.eval.demo.claims import Compared, compared
from rag_train.eval.metrics.intervals import Effect, effect_across_seeds
from rag_train.eval.metrics.summary import RunSummary

FILE = Path(__file__).with_name("reference.yaml")


CLAIMS = compared("base")
"""The demo's claims in the mini world."""


def _value(run: RunSummary, claim: Compared) -> float:
    if claim.measure == "mcc":
        return run.fact_boundary.mcc if run.fact_boundary else math.nan
    return getattr(run, claim.measure).mean


@dataclass(frozen=True)
class Placed:
    """A claim's effect in this run, among those of the reference seeds."""

    here: float
    seeds: list[float]
    margin: float

    @property
    def effect(self) -> Effect:
        """The mean over the reference seeds."""
        return effect_across_seeds(self.seeds)

    @property
    def verdict(self) -> str:
        """The verdict of the reference seeds."""
        if self.effect.lo > -self.margin:
            return "holds"
        return "fails" if self.effect.hi < -self.margin else "cannot be told apart"

    @property
    def expected(self) -> tuple[float, float]:
        """The range that contains the effect of another seed with a probability of 95%."""
        n = len(self.seeds)
        half = float(stdtrit(n - 1, 0.975)) * self.effect.se * math.sqrt(n + 1)
        return self.effect.mean - half, self.effect.mean + half

    @property
    def outside(self) -> bool:
        """Whether this run lies outside that range."""
        lo, hi = self.expected
        return not lo <= self.here <= hi


@cache
def reference() -> dict[str, list[float]]:
    """Return the effect of each reference seed, by claim."""
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def effects(runs: Sequence[RunSummary], claims: Mapping[str, Compared] = CLAIMS) -> dict[str, list[float]]:
    """Return each claim's effect in every seed of ``runs``; claims about other runs are absent."""
    by_seed = {(run.name, *run.seeds): run for run in runs}
    seeds = sorted({seed for run in runs for seed in run.seeds})
    return {
        text: [
            round(_value(by_seed[claim.second, seed], claim) - _value(by_seed[claim.first, seed], claim), 6)
            for seed in seeds
        ]
        for text, claim in claims.items()
        if all((name, seed) in by_seed for name in (claim.first, claim.second) for seed in seeds)
    }


def placed(runs: Sequence[RunSummary]) -> dict[str, Placed]:
    """Return the mini world's claims of a run, by text; empty for a run elsewhere, which lacks some of them."""
    found = effects(runs)
    if found.keys() != CLAIMS.keys():
        return {}
    return {
        text: Placed(sum(here) / len(here), reference()[text], CLAIMS[text].margin)
        for text, here in found.items()
        if not any(map(math.isnan, here))
    }
