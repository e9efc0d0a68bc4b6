"""The pages whose commands and code are run as they stand."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

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


@pytest.mark.slow
def test_notebook_prints_what_it_shows() -> None:
    notebook = json.loads((HOWTO / "notebook.ipynb").read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {}
    with asyncio.Runner() as runner:
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                continue
            code = compile("".join(cell["source"]), "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            with redirect_stdout(io.StringIO()) as printed:
                waiting = eval(code, namespace)
                if asyncio.iscoroutine(waiting):
                    runner.run(waiting)
            streams = [output for output in cell["outputs"] if output["output_type"] == "stream"]
            assert printed.getvalue() == "".join(line for stream in streams for line in stream["text"])
