"""Scales of the axes of plots that are drawn as SVG, with round ticks."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from [lo, hi] to [start, end], in SVG units."""

    lo: float
    hi: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        warp = math.log if self.log else float
        share = (warp(value) - warp(self.lo)) / (warp(self.hi) - warp(self.lo))
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return positions and labels: multiples of 1, 2 or 5 times a power of ten, about four to nine."""
        if self.log:
            return [(self(value), f"{value:g}") for value in _log_ticks(self.lo, self.hi)]
        step = round_step(self.hi - self.lo)
        first, last = math.ceil(self.lo / step - 1e-9), math.floor(self.hi / step + 1e-9)
        return [(self(i * step), f"{round(i * step, 10):,g}") for i in range(first, last + 1)]


@dataclass(frozen=True)
class Choices:
    """A map from a few values to evenly spaced places between start and end."""

    choices: Sequence[Any]
    start: float
    end: float

    def __call__(self, value: Any) -> float:
        share = (self.choices.index(value) + 0.5) / len(self.choices)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self) -> list[tuple[float, str]]:
        return [(self(choice), label(choice)) for choice in self.choices]


def label(value: Any) -> str:
    """Format a value: a float with four digits, text without quotes, any other value as JSON."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def round_step(span: float) -> float:
    """Return the distance of round ticks, of which at least four fit into ``span``."""
    power = 10 ** math.floor(math.log10(span / 4))
    return max(m * power for m in (1, 2, 5) if m * power <= span / 4 * (1 + 1e-9))


def round_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return ends of an axis for ``values``: the next ticks, and zero if zero is near."""
    lo, hi = min(values, default=0.0), max(values, default=1.0)
    if 0 <= lo < 0.5 * hi:
        lo = 0.0
    if lo == hi:
        hi = lo + 1
    step = round_step(hi - lo)
    return math.floor(lo / step + 1e-9) * step, math.ceil(hi / step - 1e-9) * step


def _log_ticks(lo: float, hi: float) -> list[float]:
    """Return the values 1, 2 and 5 times powers of ten in [lo, hi], fewer if these are many; else the ends."""
    powers = range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1)
    for digits in ((1, 2, 5), (1, 5), (1,)):
        values = [float(f"{digit}e{power}") for power in powers for digit in digits]
        ticks = [value for value in values if lo * (1 - 1e-9) <= value <= hi * (1 + 1e-9)]
        if len(ticks) <= 6:
            break
    return ticks if len(ticks) > 1 else [lo, hi]
