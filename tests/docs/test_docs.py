"""The documentation: README, and the site."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.browser import chromium
from support.paths import ROOT
from typer.main import get_command

from rag_train.cli.app import app
from rag_train.data_synth.methods.deeprag import DeepRAGRecipe
from rag_train.recipe import describe
from rag_train.strategies.kit import RETRIEVER_KINDS
from rag_train.training.recipe import TrainRecipe

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted((DOCS / "site").rglob("*.md"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("MkDocs Material is not installed (pip install -e '.[docs]')")
    output = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--strict", "--config-file", DOCS / "mkdocs.yml", "--site-dir", output]
    command = [sys.executable, "-m", "mkdocs", "build", *map(str, options)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return output


@pytest.mark.slow
def test_site_loads_nothing_from_a_network(site: Path) -> None:
    """`mkdocs build --strict` has checked the links."""
    tag = r"<(?:script|img|iframe|link|source)[^>]*?(?:src|href)="
    loads = re.compile(rf"""(?:{tag}|url\(|@import )["']?(https?:[^"')\s>]+)""")
    texts = {
        file.name: file.read_text(encoding="utf-8") for file in site.rglob("*") if file.suffix in (".html", ".css")
    }
    assert (
        len(texts) > 40 and {name: loads.findall(text) for name, text in texts.items() if loads.search(text)} == {}
    )


@pytest.mark.slow
@pytest.mark.browser
def test_search_works_from_a_file_address(site: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        browser.open(f"{(site / 'index.html').as_uri()}?q=threshold")
        browser.wait("/[1-9].* matching/.test(document.querySelector('.md-search-result__meta')?.textContent)")
        sent = [event for event in browser.events if event.get("method") == "Network.requestWillBeSent"]
    requests = [event["params"]["request"]["url"] for event in sent]
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("name", ["synth", "sft", "dpo"])
def test_tutorial_recipes_have_known_keys(name: str) -> None:
    known = {key.name for key in describe(DeepRAGRecipe if name == "synth" else TrainRecipe)}
    recipe = yaml.safe_load((DOCS / "tutorial" / f"{name}.yaml").read_text())
    assert set(dotted(recipe)) <= known


def dotted(mapping: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in mapping.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")


def test_pages_name_existing_commands() -> None:
    named = {
        (page.name, match[1], match[2])
        for page in PAGES
        for match in re.finditer(r"rag-train ([a-z][a-z-]+)(?: ([a-z][a-z-]+))?", code(page))
    }
    assert len(named) > 40
    commands: dict[str, Any] = get_command(app).commands
    for page, name, sub in named:
        assert name in commands, f"{page}: rag-train {name}"
        if hasattr(commands[name], "commands"):
            assert sub in commands[name].commands, f"{page}: rag-train {name} {sub}"


def test_pages_name_existing_recipes_and_launch_files() -> None:
    named = {
        (page.name, match[0])
        for page in PAGES
        for match in re.finditer(r"\b(?:recipes|launch|docs/tutorial)/[\w/]+\.(?:yaml|json|sh|sbatch)", code(page))
    }
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name[1]).is_file()] == []


def code(page: Path) -> str:
    """The code blocks and the inline code of a Markdown page, a line each."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", page.read_text(encoding="utf-8"), re.DOTALL))


def test_embedded_files_are_as_they_are() -> None:
    embedded = [
        (page.name, *found)
        for page in PAGES
        for found in re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert len(embedded) >= 5
    assert [name for _, name, text in embedded if (ROOT / name).read_text(encoding="utf-8") != text] == []


def test_commands_name_kinds_of_retrievers_that_exist():
    """Three places gave a name, `--index wiki=...`, which only --retriever takes."""
    pages = [*PAGES, *(ROOT / "recipes").glob("*.yaml")]
    kinds = {kind for page in pages for kind in re.findall(r"--index (\w+)=", page.read_text(encoding="utf-8"))}
    assert {"sparse", "dense"} <= kinds <= set(RETRIEVER_KINDS)
