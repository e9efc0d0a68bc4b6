"""A small SVG canvas: boxes, arrows and text in six colours that follow the page's colour scheme."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Literal

Colour = Literal["ink", "muted", "line", "panel", "retrieve", "memory", "good"]
Point = tuple[float, float]

LIGHT = {
    "ink": "#1f2328",
    "muted": "#59636e",
    "line": "#8c959f",
    "panel": "#f3f5f8",
    "retrieve": "#0b6bcb",
    "memory": "#b35900",
    "good": "#1a7f37",
}
DARK = {
    "ink": "#e6edf3",
    "muted": "#a3adb8",
    "line": "#6e7781",
    "panel": "#252b33",
    "retrieve": "#6cb6ff",
    "memory": "#f0a94b",
    "good": "#56d364",
}


class Canvas:
    """An SVG drawing. Colours are CSS variables (``--fig-ink``, ...) that the site sets for each scheme."""

    def __init__(self, width: int, height: int, title: str):
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        *,
        fill: Colour | None = "panel",
        stroke: Colour | None = "line",
        dashed: bool = False,
        radius: float = 8,
        width: float = 1.5,
        opacity: float = 1,
    ) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        alpha = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius:g}" fill="{_colour(fill)}" '
            f'stroke="{_colour(stroke)}" stroke-width="{width:g}"{dash}{alpha}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 14,
        colour: Colour = "ink",
        anchor: Literal["start", "middle", "end"] = "middle",
        bold: bool = False,
        mono: bool = False,
        italic: bool = False,
        rotate: float = 0,
    ) -> None:
        """Write ``text`` with its baseline at ``y``; a line break starts a new line."""
        style = f"{' font-weight=' + chr(34) + '600' + chr(34) if bold else ''}"
        style += ' font-style="italic"' if italic else ""
        style += ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"' if mono else ""
        style += f' transform="rotate({rotate:g} {x:g} {y:g})"' if rotate else ""
        for i, line in enumerate(text.split("\n")):
            self._parts.append(
                f'<text x="{x:g}" y="{y + i * size * 1.25:g}" font-size="{size:g}" fill="{_colour(colour)}" '
                f'text-anchor="{anchor}"{style} xml:space="preserve">{escape(line)}</text>'
            )

    def heading(self, x: float, y: float, text: str, *, colour: Colour = "ink", size: float = 16) -> None:
        """Bold text that starts at ``x``."""
        self.text(x, y, text, size=size, colour=colour, anchor="start", bold=True)

    def note(self, x: float, y: float, text: str) -> None:
        """Small, muted text that starts at ``x``."""
        self.text(x, y, text, size=12.5, colour="muted", anchor="start")

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        label: str,
        note: str = "",
        *,
        stroke: Colour = "line",
        fill: Colour | None = "panel",
        dashed: bool = False,
        size: float = 14,
        mono: bool = False,
    ) -> None:
        """A rounded box with a centred label and, below it, a smaller note."""
        self.rect(x, y, w, h, stroke=stroke, fill=fill, dashed=dashed, width=2 if stroke != "line" else 1.5)
        lines, notes = label.split("\n"), note.split("\n") if note else []
        small = size - 2
        height = len(lines) * size * 1.25 + len(notes) * small * 1.25
        top = y + (h - height) / 2 + size * 0.98
        self.text(x + w / 2, top, label, size=size, bold=not mono, mono=mono)
        if note:
            self.text(x + w / 2, top + len(lines) * size * 1.25 - 1, note, size=small, colour="muted")

    def arrow(
        self,
        *points: Point,
        colour: Colour = "muted",
        label: str = "",
        at: Point | None = None,
        dashed: bool = False,
        width: float = 1.8,
        head: bool = True,
        anchor: Literal["start", "middle", "end"] = "middle",
    ) -> None:
        """A line through ``points`` with an arrow head at its end; ``at`` is where the label is written."""
        (x0, y0), (x1, y1) = points[-2], points[-1]
        angle = math.atan2(y1 - y0, x1 - x0)
        end = (x1 - 6 * math.cos(angle), y1 - 6 * math.sin(angle)) if head else (x1, y1)
        path = " L".join(f"{x:.5g} {y:.5g}" for x, y in [*points[:-1], end])
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<path d="M{path}" fill="none" stroke="{_colour(colour)}" stroke-width="{width:g}" '
            f'stroke-linejoin="round"{dash}/>'
        )
        if head:
            corners = [(x1, y1)] + [
                (x1 - 10 * math.cos(angle + turn), y1 - 10 * math.sin(angle + turn)) for turn in (0.42, -0.42)
            ]
            shape = " ".join(f"{x:.5g},{y:.5g}" for x, y in corners)
            self._parts.append(f'<polygon points="{shape}" fill="{_colour(colour)}"/>')
        if label and at:
            self.text(*at, label, size=12, colour="muted" if colour == "line" else colour, anchor=anchor)

    def line(self, *points: Point, colour: Colour = "line", width: float = 1, dashed: bool = False) -> None:
        self.arrow(*points, colour=colour, width=width, dashed=dashed, head=False)

    def dot(
        self, x: float, y: float, radius: float, colour: Colour, *, hollow: bool = False, faint: bool = False
    ) -> None:
        fill = "none" if hollow else _colour(colour)
        self._parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{fill}" stroke="{_colour(colour)}" '
            f'stroke-width="2"{" opacity=" + chr(34) + "0.4" + chr(34) if faint else ""}/>'
        )

    def inline(self) -> str:
        """SVG for a page of the site: colours come from the page's style sheet."""
        return self._svg(' class="figure"')

    def standalone(self, palette: dict[str, str]) -> str:
        """SVG as a file of its own, in fixed colours."""
        text = self._svg(' xmlns="http://www.w3.org/2000/svg"')
        return re.sub(r"var\(--fig-(\w+)\)", lambda match: palette[match[1]], text) + "\n"

    def _svg(self, attributes: str) -> str:
        name = escape(self.title)
        return (
            f'<svg{attributes} viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{name}" '
            f'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">'
            f"<title>{name}</title>{''.join(self._parts)}</svg>"
        )


def _colour(colour: Colour | None) -> str:
    return f"var(--fig-{colour})" if colour else "none"


def style_sheet() -> str:
    """CSS that sets the figures' colours for both schemes of the site."""

    def block(selector: str, palette: dict[str, str]) -> str:
        return f"{selector} {{ {' '.join(f'--fig-{name}: {value};' for name, value in palette.items())} }}"

    return "\n".join(
        [block('[data-md-color-scheme="default"]', LIGHT), block('[data-md-color-scheme="slate"]', DARK)]
    )


def spaced(start: float, end: float, n: int) -> Sequence[float]:
    """``n`` evenly spaced numbers from ``start`` to ``end``."""
    return [start + (end - start) * i / (n - 1) for i in range(n)]
