"""The tables of the papers' steps: every strategy has one, and the code that it names exists."""

from __future__ import annotations

import importlib
import re
from functools import reduce
from itertools import chain
from typing import Any

import pytest
import yaml
from support.paths import ROOT

from rag_train.strategies.base import Run
from rag_train.strategies.controller import Controller
from rag_train.strategies.registry import STRATEGIES, parse_strategy

PAGES = sorted((ROOT / "docs/site/explanation/methods").glob("*.md"))
HEAD = "| The paper | Here | Difference, and why |\n| :--- | :--- | :--- |\n"
CLASSES: dict[str, Any] = {cls.__name__: cls for cls, _ in STRATEGIES.values()} | {
    "Run": Run,
    "Controller": Controller,
}


def sections() -> dict[str, list[list[str]]]:
    """Return the rows of each strategy's table, by the section's anchor. Fails if an anchor occurs twice."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    parts = list(
        chain.from_iterable(re.split(r"^## (?=\S+ \{: #)", text, flags=re.MULTILINE)[1:] for text in texts)
    )
    found = {}
    for part in parts:
        title, body = part.split("\n", 1)
        name = title.split()[0]
        assert title == f"{name} {{: #{name} }}" and name not in found
        assert HEAD in body, name
        lines = body.partition(HEAD)[2].strip().split("\n")
        found[name] = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return found


def test_every_strategy_has_a_table_of_the_papers_steps():
    assert sorted(sections()) == sorted(STRATEGIES)


def resolve(path: str) -> Any:
    """Return what a table names: `Class.method`, or a function by its module in strategies/ or formats/."""
    head, *rest = path.split(".")
    if head in CLASSES:
        return reduce(getattr, rest, CLASSES[head])
    package = "rag_train" if head == "formats" else "rag_train.strategies"
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"{package}.{module}"), name)


@pytest.mark.parametrize("name", STRATEGIES)
def test_tables_name_existing_code_and_the_defaults(name: str):
    cls, preset = parse_strategy(name)
    rows = sections()[name]
    assert all(len(row) == 3 and all(row) for row in rows), rows
    named = re.findall(r"`([^`]+)`", " ".join(here for _, here, _ in rows))
    for token in named:
        if re.fullmatch(r"[A-Za-z_]+(\.[A-Za-z_]+)+", token):
            resolve(token)
        elif token.startswith("recipes/"):
            assert (ROOT / token).is_file(), token
    settings = [token.split("=") for token in named if re.fullmatch(r"\w+=[\w.]+", token)]
    own = {key: value for key, value in settings if hasattr(cls, key)}
    assert len(own) == len([key for key, _ in settings if key != "stage"])
    for key, value in own.items():
        assert preset.get(key, getattr(cls, key)) == yaml.safe_load(value), f"{name}: {key}={value}"
