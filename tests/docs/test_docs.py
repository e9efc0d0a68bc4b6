"""The documentation: README, the generated parts, and the site."""

from __future__ import annotations

import importlib.util
import json
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
from rag_train.data_synth.deeprag.run import DeepRAGRecipe
from rag_train.doctor.capacity import training
from rag_train.downloads.catalogue import CATALOGUE
from rag_train.model_presets import PRESETS, Preset
from rag_train.recipe import describe
from rag_train.training.recipe import LoraRecipe, TrainRecipe

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted((DOCS / "site").rglob("*.md"))]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("MkDocs Material is not installed (pip install -e '.[docs]')")
    output = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--strict", "--config-file", DOCS / "mkdocs.yml", "--site-dir", output]
    built = run("-m", "mkdocs", "build", *options)
    assert built.returncode == 0, built.stderr
    return output


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.slow
def test_generated_parts_are_up_to_date() -> None:
    checked = run(DOCS / "generate.py", "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_site_has_no_broken_link_and_loads_nothing_from_a_network(site: Path) -> None:
    checked = run(DOCS / "check_site.py", site)
    assert checked.returncode == 0, checked.stderr


def test_check_reports_broken_links_and_network_loads(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"></p><a href="#here"></a><a href="https://example.org"></a>'
        '<a href="#there"></a><a href="b.html"></a><script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "a.css").write_text("@import 'https://example.org/y.css';")
    checked = run(DOCS / "check_site.py", tmp_path)
    assert checked.returncode == 1
    assert checked.stderr.splitlines() == [
        "a.html: loads https://example.org/x.js",
        "a.html: no anchor for the link #there",
        "a.html: no file for the link b.html",
        "a.css: loads https://example.org/y.css",
    ]


@pytest.mark.slow
@pytest.mark.browser
def test_search_works_from_a_file_address(site: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        browser.open(f"{(site / 'index.html').as_uri()}?q=threshold")
        browser.wait("/[1-9].* matching/.test(document.querySelector('.md-search-result__meta')?.textContent)")
        requests = [event["params"]["request"]["url"] for event in browser.events if is_request(event)]
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def is_request(event: dict[str, Any]) -> bool:
    return event.get("method") == "Network.requestWillBeSent"


FIGURE = re.compile(r"\b\d[\d,]*(?:\.\d+)?\s?(?:%|(?:s|ms|seconds|GiB|MiB|times|points)\b)|\b\d[\d,]*\.\d+\b")
STATED = {
    "bench_memory.md": {"15%"},  # the goal
    "README.md": {"3.11", "2.0"},  # versions
    "bench_training.md": {"4 times", "1.3 times", "1.1 times", "0.9.5", "0.9"},  # goals and a version
    "atlas.md": {"95%", "6 GiB"},  # the goal
    "real.md": {"95%"},
    "real_dev.md": {"95%"},
    "real_files.md": {"95%"},
    "demo.md": {"95%"},
    "reproduction.md": {"2.5%", "95%"},
}
"""Figures that are not measured, by page."""


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((DOCS / "site/results").glob("*.md"))], ids=lambda path: path.name
)
def test_measured_figures_come_from_results_files(page: Path) -> None:
    """H5: times, memory and ratios were typed by hand, without a file."""
    text = page.read_text(encoding="utf-8")
    generated = (
        r"<!-- generated.*?<!-- end -->|\[\[=.*?=\]\]|```.*?```|`[^`]*`|\]\([^)]*\)|arXiv [\d.]+|doi [\w./]+"
    )
    typed = FIGURE.findall(re.sub(generated, "", text, flags=re.DOTALL))
    assert set(typed) <= STATED.get(page.name, set()), "let docs/generator read these figures from docs/results"


def test_every_results_file_has_a_page() -> None:
    renamed = {
        "factories": "teacher_data",
        "demo_first": "demo",
        "demo_seeds": "demo",
        "reproduction_seeds": "reproduction",
        "thresholds": "reproduction",
        **dict.fromkeys(("bench_credit_dev", "bench_credit_dev_0.0005", "bench_credit_dev_0.002"), "bench_credit"),
        "bench_frontier_dev": "bench_frontier",
    }
    names = {path.stem for path in (DOCS / "results").glob("*.json")}
    pages = {path.stem for path in (DOCS / "site" / "results").glob("*.md")}
    assert {renamed.get(name, name) for name in names - {"tutorial"}} == pages - {"index", "rehearsal"}


def test_the_tutorial_has_all_commands_that_were_run() -> None:
    from rag_train.eval.benchmarks.tutorial import COMMANDS

    page = (DOCS / "site/tutorial.md").read_text()
    assert [name for name in COMMANDS if f'tutorial("{name}")' not in page and f".{name}." not in page] == []
    run = json.loads((DOCS / "results/tutorial.json").read_text())["steps"]
    assert {name: step["command"] for name, step in run.items()} == COMMANDS


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


def test_page_of_presets_has_every_preset_with_its_gpus() -> None:
    def gpus(preset: Preset, lora: LoraRecipe | None) -> str:
        enough = (str(n) for n in (1, 2, 4, 8) if training(preset, lora, n) <= 80e9)
        return next(enough, "more than 8")

    page = (DOCS / "site/howto/model-presets.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+)` \| `(\S+/\S+)` \| (.+) \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [
        (name, preset.hub, f"{preset.parameters() / 1e9:.2f}", gpus(preset, LoraRecipe()), gpus(preset, None))
        for name, preset in PRESETS.items()
    ]


def test_page_of_downloads_has_every_data_set() -> None:
    page = (DOCS / "site/howto/get-data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.+) \|$", page, re.MULTILINE)
    assert rows == [(name, data.licence) for name, data in CATALOGUE.items()]
