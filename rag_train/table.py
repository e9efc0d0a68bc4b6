"""A table of text cells, rendered as Rich, Markdown, LaTeX, CSV or HTML."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

_INTERVAL = re.compile(r" \[[^]]*\]$")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$])")
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)
NOTHING = "–"
"""Text of a cell whose value is undefined, because there was nothing to count."""


@dataclass(frozen=True)
class Table:
    """A table of plain text cells. The first column names the row; the other columns hold numbers.

    All renderings escape their special characters, so title, caption, cells and notes may contain any text.
    """

    title: str
    caption: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    importance: Sequence[int] = ()
    """Indices of the columns after the first, most important first; empty if they are in this order already."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table for a terminal.

        If the table is too wide, intervals in brackets are dropped, then the least important columns, and a note
        says so. Headers may be wrapped between words, and so may names that take more than half of the width.
        """
        table, widths = self._fitted(options.max_width)
        footer = Text("\n".join([table.caption, *table.notes]))
        rich = RichTable(title=Text(table.title), caption=footer, caption_justify="left", box=box.SIMPLE_HEAD)
        for i, (column, width) in enumerate(zip(table.columns, widths, strict=True)):
            rich.add_column(Text(column), justify="right" if i else "left", width=width, overflow="ellipsis")
        for row in table.rows:
            rich.add_row(*map(Text, row))
        yield rich

    def _fitted(self, width: int) -> tuple[Table, list[int]]:
        """Return what fits in ``width`` characters, and the widths of its columns."""
        table, shown, dropped = self, list(range(len(self.columns))), []
        if _total(self._widths(width)) > width:
            table = replace(
                self, rows=[[row[0], *(_INTERVAL.sub("", cell) for cell in row[1:])] for row in self.rows]
            )
            dropped = ["intervals"] if table.rows != self.rows else []
        widths = table._widths(width)
        least = list(reversed(self.importance or shown[1:]))
        while least and _total(widths[i] for i in shown) > width:
            shown.remove(least.pop(0))
        dropped += [column for i, column in enumerate(self.columns) if i not in shown]
        if dropped:
            table = replace(
                table,
                columns=[self.columns[i] for i in shown],
                rows=[[row[i] for i in shown] for row in table.rows],
                notes=[*self.notes, f"Not shown, for lack of width: {', '.join(dropped)}."],
            )
        widths = [widths[i] for i in shown]
        spare = width - _total(widths)
        for i, column in enumerate(table.columns):  # keep headers in one line as far as possible
            wider = max(0, min(spare, cell_len(column) - widths[i]))
            widths[i] += wider
            spare -= wider
        return table, widths

    def _widths(self, width: int) -> list[int]:
        """Return the width of each column: its widest cell or the longest word of its header."""
        widths = [
            max(map(cell_len, [*column.split(), *(row[i] for row in self.rows)]), default=0)
            for i, column in enumerate(self.columns)
        ]
        words = [word for row in self.rows for word in row[0].split()]
        widths[0] = min(widths[0], max(map(cell_len, [*words, *self.columns[0].split(), " " * (width // 2)])))
        return widths

    def markdown(self) -> str:
        """Render the table as GitHub's pipe table under a bold title."""

        def line(cells: Sequence[str]) -> str:
            return f"| {' | '.join(map(_markdown, cells))} |"

        rule = "|" + "|".join(["---", *["---:"] * (len(self.columns) - 1)]) + "|"
        parts = [f"**{_markdown(self.title)}.** {_markdown(self.caption)}", ""]
        parts += [line(self.columns), rule, *map(line, self.rows)]
        parts += [line for note in self.notes for line in ("", _markdown(note))]
        return "\n".join(parts) + "\n"

    def latex(self) -> str:
        """Render the table as a floating LaTeX table, which needs the booktabs package."""

        def line(cells: Sequence[str]) -> str:
            return " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\"

        caption = " ".join([f"{self.title}.", self.caption, *self.notes]).translate(_LATEX)
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
                r"\toprule",
                line(self.columns),
                r"\midrule",
                *map(line, self.rows),
                r"\bottomrule",
                r"\end{tabular}",
                rf"\caption{{{caption}}}",
                r"\end{table}",
                "",
            ]
        )

    def csv(self) -> str:
        """Render the columns and rows as CSV."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([self.columns, *self.rows])
        return out.getvalue()

    def html(self) -> str:
        """Render the table as a <figure> without styles, which scrolls sideways if the page is narrow."""
        title, caption = html.escape(self.title), html.escape(self.caption)
        head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in self.columns)
        rows = "".join(
            f'<tr><th scope="row">{html.escape(row[0])}</th>'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
            + "</tr>\n"
            for row in self.rows
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return (
            f'<figure class="table"><figcaption><h3>{title}</h3><p>{caption}</p></figcaption>\n'
            f'<div class="scroll" role="region" tabindex="0" aria-label="{title}">\n'
            f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>{notes}</figure>\n"
        )


def gib(size: float) -> str:
    """Return a number of bytes in GiB."""
    return f"{size / 2**30:,.1f} GiB"


def duration(seconds: float) -> str:
    """Return a duration in words, such as 0.4 s, 42 s, 3 min 5 s, 2 h 10 min or 23 d 4 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24:,} d {hours % 24} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def estimates(caption: str, rows: Iterable[tuple[str, str]], assumptions: Sequence[str]) -> Table:
    """Return the table of a dry run: what a command would take, and the assumptions as notes."""
    return Table("Dry run", caption, ["", "estimate"], [list(row) for row in rows], list(assumptions))


def _total(widths: Iterable[int]) -> int:
    """Return the width of a table in a terminal: each column has a space on either side, and a border or a gap."""
    return sum(width + 3 for width in widths) + 1


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))
