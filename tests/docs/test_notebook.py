"""The notebook of the documentation: it runs, and prints what it shows."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from support.paths import ROOT

RUNNER = ROOT / "docs/run_notebook.py"
NOTEBOOK = ROOT / "docs/site/howto/notebook.ipynb"


@pytest.mark.slow
def test_notebook_prints_what_it_shows() -> None:
    checked = subprocess.run([sys.executable, RUNNER, "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_notebook_is_valid_and_has_a_figure() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len({*ids}) == len(ids)
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.slow
def test_cells_share_names_may_await_and_show_their_last_value() -> None:
    spec = importlib.util.spec_from_file_location("run_notebook", RUNNER)
    assert spec and spec.loader
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    first, second = runner.run(["import asyncio\nx = await asyncio.sleep(0, 3)\nprint(x)", "x + 1"])
    assert runner.printed(first) == "3\n"
    assert [output["data"] for output in second] == [{"text/plain": ["4"]}]
