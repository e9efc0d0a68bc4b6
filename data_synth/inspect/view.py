"""`rag-train data view`: a self-contained HTML page that shows records one by one, without network access.

Texts of models and documents are untrusted. They are written into a JSON block, in which every ``<`` is escaped,
and the script puts them into text nodes only. The page's content security policy allows no other script.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rag_train.data_synth.inspect.records import described, read_record_file
from rag_train.jobs.files import write_text
from rag_train.templates import inline, template


def write_page(path: Path, output: Path, most: int = 2000) -> Path:
    """Write a page of the records in ``path``, and of ``<path>.rejected.jsonl`` if it exists, to ``output``.

    Records of the same question are next to each other. If there are more than ``most`` records, the page has those
    of questions that are spread evenly, at most ``most``. Raises UserError if ``path`` is not a file of records.
    """
    items = list(_items(path))
    if (rejected := Path(f"{path}.rejected.jsonl")).exists():
        items += _items(rejected)
    questions: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        questions.setdefault(item["question"], []).append(item)
    groups = list(questions.values())
    count = len(groups) if len(items) <= most else max(1, most * len(groups) // len(items))
    shown = [item for i in range(count) for item in groups[i * len(groups) // count]][:most]
    data = json.dumps({"name": path.name, "all": len(items), "items": shown}, ensure_ascii=False)
    style, style_source = inline("data_synth/inspect/view.css", "pages/plan.css")
    script, script_source = inline("data_synth/inspect/view.js", "pages/plan.js")
    page = template("data_synth/inspect/view.html.jinja").render(
        name=path.name,
        style=style,
        script=script,
        style_hash=style_source,
        script_hash=script_source,
        data=Markup(data.replace("<", "\\u003c")),
    )
    write_text(output, page)
    return output


def _items(path: Path) -> Iterator[dict[str, Any]]:
    for line, record in read_record_file(path).records.items():
        said = described(record)
        yield {
            "line": line,
            "kind": type(record).__name__,
            "task": said.task,
            "outcome": said.outcome,
            "title": said.title,
            "question": said.question_id,
            "record": record.model_dump(mode="json"),
        }
