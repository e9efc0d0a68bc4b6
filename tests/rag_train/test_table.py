"""Tables in a terminal: no cell is broken, and what does not fit is dropped with a note."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from rag_train.table import Table, duration

NAMES = ["Strategy", "EM", "F1", "Accuracy", "Retrievals per question", "Steps", "Prompt tokens"]
ROWS = [
    ["deeprag-parametric", "51.2 [49.1, 53.3]", "60.0 [58.2, 61.9]", "55.5 [53.0, 58.0]", "0.00", "2.3", "1,024"],
    ["rag [k=3]", "31.0 [29.1, 33.3]", "41.7 [39.2, 43.9]", "35.5 [33.0, 38.0]", "1.00", "1.0", "512"],
]
TABLE = Table("Main results", "Questions of the test set.", NAMES, ROWS, ["In brackets: 95% interval."])


def shown(table: Table, width: int) -> list[str]:
    """The lines that a console of ``width`` characters prints."""
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(table)
    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    return lines


def cells(lines: list[str], name: str) -> list[str]:
    """The cells of the row that begins with ``name``."""
    [line] = [line for line in lines if line.strip().startswith(name)]
    return [cell.strip() for cell in line.strip().split("   ") if cell.strip()]


def note(lines: list[str]) -> str:
    text = " ".join(" ".join(lines).split())
    return text[text.index("Not shown") :] if "Not shown" in text else ""


def test_wide_terminal_shows_everything():
    lines = shown(TABLE, 200)
    assert [cells(lines, row[0]) for row in ROWS] == ROWS
    assert cells(lines, "Strategy") == NAMES
    assert note(lines) == ""


def test_80_columns_drop_intervals_and_then_the_last_columns():
    lines = shown(TABLE, 80)
    assert cells(lines, "rag [k=3]") == ["rag [k=3]", "31.0", "41.7", "35.5", "1.00", "1.0", "512"]
    assert note(lines) == "Not shown, for lack of width: intervals."
    lines = shown(TABLE, 60)
    assert cells(lines, "rag [k=3]") == ["rag [k=3]", "31.0", "41.7", "35.5", "1.00"]
    assert note(lines) == "Not shown, for lack of width: intervals, Steps, Prompt tokens."


def test_40_columns_keep_the_most_important_columns():
    lines = shown(TABLE, 40)
    assert cells(lines, "deeprag") == ["deeprag-parametric", "51.2", "60.0"]
    assert note(lines) == (
        "Not shown, for lack of width: intervals, Accuracy, Retrievals per question, Steps, Prompt tokens."
    )


def test_long_names_are_wrapped_between_words():
    name = "a claim of a paper in a sentence that is longer than half of the terminal is wide"
    lines = shown(Table("T", "c", ["Claim", "holds", "fails"], [[name, "3", "1"]]), 60)
    [first, *rest] = [line for line in lines if set(line.split()) & set(name.split())]
    assert first.split()[-2:] == ["3", "1"]
    assert " ".join([*first.split()[:-2], *" ".join(rest).split()]) == name


def test_drops_columns_in_order_of_importance():
    table = replace(TABLE, importance=[6, 1, 4, 2, 3, 5])
    assert cells(shown(table, 44), "rag [k=3]") == ["rag [k=3]", "31.0", "512"]
    assert cells(shown(table, 60), "rag [k=3]") == ["rag [k=3]", "31.0", "41.7", "1.00", "512"]


@pytest.mark.slow
@pytest.mark.parametrize("width", range(24, 140))
def test_no_cell_is_broken_at_any_width(width: int):
    lines = shown(TABLE, width)
    for row in ROWS:
        whole = {*row, *(cell.partition(" [")[0] for cell in row)}
        assert set(cells(lines, row[0])) <= whole


def test_header_words_are_wrapped_before_a_column_is_dropped():
    table = Table("T", "c", ["Name", "a long header"], [["x", "1"]])
    assert note(shown(table, 18)) == ""
    assert "a long header" in " ".join(shown(table, 30))


def test_durations_read_well():
    assert [duration(seconds) for seconds in (0.42, 42, 185, 7800, 2e6)] == [
        "0.4 s", "42 s", "3 min 5 s", "2 h 10 min", "23 d 3 h"
    ]  # fmt: skip
