"""Plots: an SVG element in the page's colours, in which every text is text."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest

from rag_train.errors import UserError
from rag_train.pages.plots import color, draw, label_points, short

EVIL = '</svg><script>alert(1)</script> $a$ style="x" <g id="y">'


def plotted(figure: Any) -> None:
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], "o", color=color("c0"), label="names")
    axes.set_title(EVIL, color=color("ink"))
    label_points(axes, [("first", 0, 0, color("c0")), (EVIL, 1, 1, color("c1"))])


def test_a_plot_is_one_element_without_styles_and_scripts():
    svg = draw(EVIL, (3, 2), plotted)
    assert svg == draw(EVIL, (3, 2), plotted), "the same plot is the same text"
    assert svg.startswith('<svg class="plot"') and svg.rstrip().endswith("</svg>") and svg.count("<svg") == 1
    assert "<script" not in svg and "<style" not in svg and "http" not in svg and "#0001" not in svg
    assert "var(--c0)" in svg and "var(--ink)" in svg and 'style="x" &lt;g id="y"&gt;' in svg and "$a$" in svg


def test_long_names_are_cut_and_labels_are_apart():
    assert short("a" * 40) == "a" * 35 + "…" and short("name") == "name"
    places: list[float] = []

    def crowded(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1])
        label_points(axes, [(str(i), 0.5, 0.5 + i / 1000, color("c0")) for i in range(9)])
        places.extend(sorted(text.xy[1] for text in axes.texts))

    draw("t", (3, 2), crowded)
    assert min(b - a for a, b in itertools.pairwise(places)) > 0.04


def test_without_matplotlib_the_report_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "rag_train.pages.plots")
    with pytest.raises(UserError, match=r"matplotlib is not installed; run pip install .*\[eval\]"):
        import rag_train.pages.plots  # noqa: F401
