"""MkDocs hooks: add the generated pages, figures and results files, and fill in expressions on pages.

``[[= expression =]]`` on a page is replaced by its value: a figure, or a table or number from ``docs/results``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
from figures import FIGURES
from figures.svg import style_sheet
from generator import plans, reference, results, stage3
from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent

ENVIRONMENT = jinja2.Environment(
    variable_start_string="[[=",
    variable_end_string="=]]",
    block_start_string="[[%",
    block_end_string="%]]",
    comment_start_string="[[#",
    comment_end_string="#]]",
    undefined=jinja2.StrictUndefined,
    autoescape=False,
)


def figure(name: str) -> str:
    """Return a figure as inline SVG, so that it follows the page's colour scheme."""
    drawing = FIGURES[name]()
    narrow = " narrow" if drawing.width < 800 else ""
    return f'<div class="figure-frame{narrow}" markdown="0">{drawing.inline()}</div>'


def source(path: str) -> str:
    """Return the text of a file of the repository."""
    return (HERE.parent / path).read_text(encoding="utf-8").rstrip()


def notebook(path: str) -> str:
    """Return a notebook of the repository as Markdown, with its printed text and its figures."""
    parts = []
    for cell in json.loads(source(path))["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
        for output in cell.get("outputs", []):
            if image := output.get("data", {}).get("image/png"):
                parts.append(f"![Figure of the cell above](data:image/png;base64,{image})")
            else:
                parts.append(f"```text\n{''.join(output['text'])}```")
    return "\n\n".join(parts)


def on_files(files: Files, config: Any) -> Files:
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "assets/figures.css", content=style_sheet()))
    for path in sorted((HERE / "results").iterdir()):
        if path.suffix in (".json", ".html"):
            files.append(File.generated(config, f"results/files/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    if page.file.src_uri.startswith("reference/"):
        return markdown
    functions = results.FUNCTIONS | plans.FUNCTIONS | stage3.FUNCTIONS
    return ENVIRONMENT.from_string(markdown).render(functions, figure=figure, source=source, notebook=notebook)
