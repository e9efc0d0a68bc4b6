"""The notebook of the documentation: it runs, and prints what it shows."""

from __future__ import annotations

import ast
import asyncio
import io
import json
from contextlib import redirect_stdout
from typing import Any

import pytest
from support.paths import ROOT

NOTEBOOK = ROOT / "docs/site/howto/notebook.ipynb"


@pytest.mark.slow
def test_notebook_prints_what_it_shows() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
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
