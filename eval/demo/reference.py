"""The claims of the mini world's demo over the reference seeds, whose results are in the documentation.

A newcomer's demo is one seed, and one seed cannot decide a claim. ``reference.yaml`` has each claim's effect in
every reference seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import yaml
from scipy.special import stdtrit

from rag_train.eval.demo.claims import MINI_WORLD_CLAIMS, Compared
from rag_train.eval.metrics.intervals import Effect, effect_across_seeds, holm
from rag_train.eval.metrics.summary import RunSummary
from rag_train.eval.papers.protocol import seeds_of

FILE = Path(__file__).with_name("reference.yaml")
PROTOCOL = Path(__file__).with_name("miniworld_protocol.yaml")
LEVEL = 0.025
"""Level of each one-sided test, with Holm's correction over the claims."""


def _value(run: RunSummary, claim: Compared) -> float:
    if claim.measure == "mcc":
        return run.fact_boundary.mcc if run.fact_boundary else math.nan
    return getattr(run, claim.measure).mean


def verdicts(seeds: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Decide each claim as ``miniworld_protocol.yaml`` rules, given its effect in at least two seeds."""
    found = {text: effect_across_seeds(values) for text, values in seeds.items()}
    least = {text: -MINI_WORLD_CLAIMS[text].margin for text in found}
    above = holm([effect.p_above(least[text]) for text, effect in found.items()], len(MINI_WORLD_CLAIMS))
    below = holm([effect.p_below(least[text]) for text, effect in found.items()], len(MINI_WORLD_CLAIMS))
    return {
        text: "holds" if p <= LEVEL else "fails" if contrary <= LEVEL else "cannot be told apart"
        for text, p, contrary in zip(found, above, below, strict=True)
    }


def is_complete(runs: Sequence[RunSummary]) -> bool:
    """Whether the runs are those of all test seeds."""
    return sorted({seed for run in runs for seed in run.seeds}) == seeds_of(PROTOCOL, "test")


def verdicts_so_far(runs: Sequence[RunSummary]) -> dict[str, str]:
    """Return the verdict on each claim, which is "open" before all test seeds have been run."""
    return verdicts(effects(runs)) if is_complete(runs) else dict.fromkeys(MINI_WORLD_CLAIMS, "open")


@dataclass(frozen=True)
class Placed:
    """A claim's effect in this run, among those of the reference seeds."""

    here: float
    seeds: list[float]
    margin: float
    verdict: str
    """The verdict of the reference seeds."""

    @property
    def effect(self) -> Effect:
        """The mean over the reference seeds."""
        return effect_across_seeds(self.seeds)

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

    def line(self, text: str) -> str:
        """Return the claim ``text``, its verdict and its effects in one line for the console."""
        effect = self.effect
        outside = ", which is outside of what they let expect" if self.outside else ""
        return (
            f"{self.verdict}: {text}; {len(self.seeds)} reference seeds: {effect.mean:+.3f} "
            f"[{effect.lo:+.3f}, {effect.hi:+.3f}]; this run: {self.here:+.3f}{outside}"
        )


@cache
def reference() -> dict[str, list[float]]:
    """Return the effect of each reference seed, by claim."""
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def effects(runs: Sequence[RunSummary]) -> dict[str, list[float]]:
    """Return each claim's effect in every seed of ``runs``."""
    by_seed = {(run.name, *run.seeds): run for run in runs}
    seeds = sorted({seed for run in runs for seed in run.seeds})
    return {
        text: [
            round(_value(by_seed[claim.second, seed], claim) - _value(by_seed[claim.first, seed], claim), 6)
            for seed in seeds
        ]
        for text, claim in MINI_WORLD_CLAIMS.items()
    }


def placed(runs: Sequence[RunSummary]) -> dict[str, Placed]:
    """Return the claims of a demo in the mini world, by text.

    Empty before all reference seeds have been run.
    """
    here, decided = effects(runs), verdicts(reference())
    return {
        text: Placed(fmean(here[text]), seeds, MINI_WORLD_CLAIMS[text].margin, decided[text])
        for text, seeds in reference().items()
        if not any(map(math.isnan, here[text]))
    }
