"""The how-to pages' commands, run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from rag_train.strategies.kit import RETRIEVER_KINDS

HOWTO = ROOT / "docs/site/howto"


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_separate_models_from_data_to_evaluation(tmp_path: Path):
    page = (HOWTO / "separate-models.md").read_text(encoding="utf-8")
    commands = "\n".join(re.findall(r"(?ms)^```\n(.*?)^```$", page))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    script = ["bash", "-euo", "pipefail", "-c", commands]
    ran = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    cells = json.loads((tmp_path / "runs/eval/matrix.json").read_text())["cells"]
    roles = {
        cell["strategy"]: list(
            json.loads((tmp_path / f"runs/eval/cells/{cell['id']}.settings.json").read_text())["roles"]
        )
        for cell in cells
    }
    assert roles == {
        "hanrag": ["revelator"],
        "planrag": ["planner"],
        "adaptive-rag": ["classifier"],
        "uar": ["classifier"],
    }
    assert [cell["summary"]["errors"] for cell in cells] == [0] * 4


def test_commands_name_kinds_of_retrievers_that_exist():
    """Three places gave a name, `--index wiki=...`, which only --retriever takes."""
    pages = [ROOT / "README.md", *(ROOT / "docs/site").rglob("*.md"), *(ROOT / "recipes").glob("*.yaml")]
    kinds = {kind for page in pages for kind in re.findall(r"--index (\w+)=", page.read_text(encoding="utf-8"))}
    assert {"sparse", "dense"} <= kinds <= set(RETRIEVER_KINDS)
