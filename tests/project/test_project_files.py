"""The files around the code: Dockerfiles, issue templates, contributing guide, changelog and citation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfile_copies_what_the_package_is_made_of(path: Path):
    known = {"FROM", "RUN", "ENV", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    parsed = instructions(path)
    assert parsed[0][0] == "FROM" and {word for word, _ in parsed} <= known
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [source for word, rest in parsed if word == "COPY" for source in rest.split()[:-1]]
    assert all((ROOT / source).exists() and source not in ignored for source in copied)
    parts = {"setup.py", "rag_train", "data_synth", "eval", "launch", "recipes"}
    assert {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], *parts} <= {*copied}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfile_installs_existing_extras_and_does_not_run_as_root(path: Path):
    parsed = instructions(path)
    extras = [
        extra for _, rest in parsed for found in re.findall(r'"\.\[(.+?)\]"', rest) for extra in found.split(",")
    ]
    assert extras and set(extras) <= {*PROJECT["optional-dependencies"]}
    assert [rest for word, rest in parsed if word == "USER"] == ["1000"]
    # That user cannot write bytecode into the installation.
    assert any("UV_COMPILE_BYTECODE=1" in rest.split() for word, rest in parsed if word == "ENV")


def test_changelog_and_citation_have_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## ([\d.]+)", changelog, re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert newest and newest[1] == PROJECT["version"] == citation["version"]
    assert citation["license"] == PROJECT["license"] and citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
