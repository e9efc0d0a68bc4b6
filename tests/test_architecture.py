"""Imports run one way, without circles: the package's structure, read from its sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest
from support.paths import ROOT

PACKAGE = "rag_train"


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by name; data_synth/ and eval/ are part of it."""
    found = {}
    for folder, prefix in (("rag_train", ""), ("data_synth", f"{PACKAGE}."), ("eval", f"{PACKAGE}.")):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = prefix + ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """The package's modules that a file imports, also inside functions and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def graph() -> nx.DiGraph:
    edges = [(name, other) for name, path in modules().items() for other in imported(path) if other in modules()]
    return nx.DiGraph(edges)


@pytest.mark.slow
def test_no_circular_imports():
    assert [circle for circle in nx.strongly_connected_components(graph()) if len(circle) > 1] == []


@pytest.mark.slow
def test_only_the_command_line_imports_upwards():
    def floor(name: str) -> int:
        """0 for the library, 1 for data_synth, 2 for eval, 3 for the command line, of which train is a name."""
        package = name.split(".")[1] if "." in name else ""
        return {"data_synth": 1, "eval": 2, "cli": 3, "train": 3}.get(package, 0)

    upwards = [f"{name} imports {other}" for name, other in graph().edges if floor(other) > floor(name)]
    assert upwards == []
