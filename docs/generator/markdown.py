"""Markdown tables and number formats."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """Return a Markdown table. ``align`` has an ``l`` or ``r`` for each column; further columns are ``r``."""
    rules = ["---:" if (align[i] if i < len(align) else "r") == "r" else ":---" for i in range(len(columns))]
    lines = [columns, rules, *rows]
    return "\n".join(f"| {' | '.join(cell(text) for text in line)} |" for line in lines)


def bullets(items: Iterable[str]) -> str:
    """Return a Markdown list, wrapped."""
    return "\n".join(
        textwrap.fill(f"- {item}", 116, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for item in items
    )


def cell(text: str) -> str:
    """Escape ``text`` for one cell of a table."""
    return re.sub(r"[ \t\n]+", " ", str(text)).strip().replace("|", "\\|")


def number(value: float | None, digits: int = 2) -> str:
    """Format with thousands separators; None is a dash."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """Format a share between 0 and 1 as a percentage without the sign."""
    return "–" if value is None else f"{100 * value:.{digits}f}"


def between(low: float, high: float, digits: int = 2) -> str:
    """Format a range or an interval, without a break inside the brackets."""
    return f"[{low:,.{digits}f},\N{NO-BREAK SPACE}{high:,.{digits}f}]"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Format repeated measurements: their mean, then the lowest and the highest."""
    return f"{number(sum(values) / len(values), digits)} {between(min(values), max(values), digits)}"
