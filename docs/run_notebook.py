"""Runs the notebook of the documentation and writes its outputs into it (make notebook).

    python docs/run_notebook.py            run, and replace the outputs
    python docs/run_notebook.py --check    run, and compare the printed text; exit code 1 if it differs

Cells run in one namespace, as in Jupyter: ``await`` is allowed, and the value of a cell's last expression is shown.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType
from typing import Any

from matplotlib.figure import Figure

NOTEBOOK = Path(__file__).parent / "site/howto/notebook.ipynb"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the printed text differs")
    options = parser.parse_args()
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    before = [printed(cell["outputs"]) for cell in cells]
    for count, (cell, outputs) in enumerate(zip(cells, run(["".join(c["source"]) for c in cells]), strict=True), 1):
        cell |= {"execution_count": count, "outputs": outputs}
    if not options.check:
        NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for cell, text in zip(cells, before, strict=True):
        if options.check and printed(cell["outputs"]) != text:
            sys.exit(f"cell {cell['execution_count']}: prints\n{printed(cell['outputs'])}\ninstead of\n{text}")


def run(sources: list[str]) -> list[list[dict[str, Any]]]:
    """Run the cells, one after the other, and return the outputs of each."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:

        def evaluate(code: CodeType) -> Any:
            value = eval(code, namespace)
            return runner.run(value) if asyncio.iscoroutine(value) else value

        return [_run_cell(source, evaluate) for source in sources]


def _run_cell(source: str, evaluate: Any) -> list[dict[str, Any]]:
    body = ast.parse(source).body
    last = body.pop().value if isinstance(body[-1], ast.Expr) else ast.parse("None", mode="eval").body
    said = io.StringIO()
    with redirect_stdout(said):
        evaluate(_compiled(ast.Module(body, []), "exec"))
        value = evaluate(_compiled(ast.Expression(last), "eval"))
    lines = said.getvalue().splitlines(keepends=True)
    outputs: list[dict[str, Any]] = [{"output_type": "stream", "name": "stdout", "text": lines}] if lines else []
    return outputs if value is None else [*outputs, _shown(value)]


def _compiled(tree: ast.Module | ast.Expression, mode: str) -> CodeType:
    return compile(tree, "<cell>", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _shown(value: Any) -> dict[str, Any]:
    """Return the output of a value: an image for a figure, text for all others."""
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if isinstance(value, Figure):
        image = io.BytesIO()
        value.savefig(image, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None})
        data["image/png"] = base64.b64encode(image.getvalue()).decode()
    return {"output_type": "display_data", "data": data, "metadata": {}}


def printed(outputs: list[dict[str, Any]]) -> str:
    return "".join(line for output in outputs for line in output.get("text", []))


if __name__ == "__main__":
    main()
