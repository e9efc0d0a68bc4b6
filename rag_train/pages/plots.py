"""Plots for pages: matplotlib draws them as SVG elements, in the colours of the page around them.

A plot is a function that draws on a `matplotlib.figure.Figure`, with the colours of `color`. In the element, they
are the custom properties of ``pages/base.css``, so a plot follows the reader's light or dark scheme. It has no
style sheet and no style attributes, which a page's content security policy may forbid.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup, escape

from rag_train.errors import not_installed

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
except ImportError as error:
    raise not_installed(error, "eval") from error

PALETTE = 8
"""Number of colours of lines and points: ``c0``, ``c1``, and so on."""
SHADES = 6
"""Number of shades of an ordered value, from pale to deep: ``s0``, ``s1``, and so on."""
LONGEST = 36
"""Characters of a name in a plot; longer ones are cut."""
_NAMES = [
    "ink",
    "soft",
    "rule",
    "paper",
    "link",
    *(f"c{i}" for i in range(PALETTE)),
    *(f"s{i}" for i in range(SHADES)),
]


def color(name: str) -> str:
    """Return the colour that stands for a custom property of the page, such as "ink", "c0" or "s5"."""
    return f"#0001{_NAMES.index(name):02x}"


def line_color(number: int) -> str:
    """Return the colour of the line or point with this number; they repeat after `PALETTE`."""
    return color(f"c{number % PALETTE}")


def short(name: str) -> str:
    """Return a name as a plot shows it."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1].rstrip()}…"


_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rag-train",  # the same plot is the same text
    "text.parse_math": False,  # names may contain dollars
    "text.color": color("ink"),
    "font.size": 10,
    "axes.edgecolor": color("soft"),
    "axes.labelcolor": color("soft"),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": color("rule"),
    "xtick.color": color("soft"),
    "ytick.color": color("soft"),
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "lines.linewidth": 1.75,
}


def draw(title: str, size: tuple[float, float], plot: Callable[[Figure], object]) -> Markup:
    """Return ``plot`` as an SVG element of ``size`` inches, named ``title`` for readers who do not see it."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about glyphs that matplotlib's fonts lack, but the browser's may have
        figure, out = Figure(figsize=size, layout="constrained"), io.StringIO()
        plot(figure)
        figure.savefig(out, format="svg")
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r' style="([^"]*)"', _attributes, tag[0]), text)
    start = re.search(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', text)
    assert start
    head = (
        f'<svg class="plot" viewBox="{start[1]}" stroke-linejoin="round" role="img" aria-label="{escape(title)}">'
    )
    return Markup(head + text[start.end() :])


def _attributes(style: re.Match[str]) -> str:
    """Return a style's declarations as attributes, in the page's colours; the font is the page's."""
    text = style[1]
    for name in _NAMES:
        text = text.replace(color(name), f"var(--{name})")
    pairs = [declaration.partition(":")[::2] for declaration in text.split(";")]
    return "".join(
        f' {name.strip()}="{value.strip()}"' for name, value in pairs if name.strip() not in ("", "font-family")
    )


def logarithmic(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())


def ticks(low: float, high: float, log: bool = False, whole: bool = False) -> list[float]:
    """Return round values on an axis from ``low`` to ``high``: 1, 2 and 5 times powers of ten if it is ``log``."""
    locator = LogLocator(subs=(1, 2, 5)) if log else MaxNLocator(5, integer=whole)
    return [float(tick) for tick in locator.tick_values(low, high) if low <= tick <= high]


def label_points(axes: Any, points: Sequence[tuple[str, float, float, str]]) -> None:
    """Write the names of points (name, x, y, colour) in a column on the right, as near to their heights as fits."""
    ordered = sorted(points, key=lambda point: point[2])
    (_, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    axes.set(xlim=axes.get_xlim(), ylim=(low, high))
    gap = (high - low) / max(len(ordered), 22)
    places: list[float] = []
    for _, _, y, _ in ordered:
        places.append(max(y, places[-1] + gap) if places else y)
    for i in reversed(range(len(places))):  # back from above the plot's end
        places[i] = min(places[i], high - gap * (len(places) - 1 - i))
    for (name, x, y, shade), place in zip(ordered, places, strict=True):
        axes.plot([x, right], [y, place], color=shade, linewidth=0.6, alpha=0.5, clip_on=False)
        axes.annotate(short(name), (right, place), (6, 0), textcoords="offset points", va="center", color=shade)
