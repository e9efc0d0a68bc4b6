"""The tables of the papers' steps: every strategy has one, and each row names a test that exists."""

from __future__ import annotations

import re

from support.paths import ROOT

from rag_train.strategies.registry import STRATEGIES

PAGES = sorted((ROOT / "docs/site/explanation/methods").glob("*.md"))


def test_every_strategy_has_a_table_of_the_papers_steps():
    anchors = [name for page in PAGES for name in re.findall(r"(?m)^## .*\{: #(\S+) \}$", page.read_text("utf-8"))]
    assert len(anchors) == len(set(anchors)) and set(anchors) >= STRATEGIES.keys()


def test_each_row_names_a_test_that_exists_or_has_a_dash():
    files = (ROOT / "tests").rglob("test_*.py")
    tests = {name for file in files for name in re.findall(r"(?m)^def (test_\w+)", file.read_text("utf-8"))}
    tables = [
        table for page in PAGES for table in re.split(r"\n\n", page.read_text("utf-8")) if "| Test |\n" in table
    ]
    rows = [line.rpartition(" | ")[2].strip("| ") for table in tables for line in table.splitlines()[2:]]
    assert len(rows) > 70
    assert [row for row in rows if row != "–" and not set(re.findall(r"`([^`]+)`", row) or [row]) <= tests] == []
