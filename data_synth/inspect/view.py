"""`rag-train data view`: a self-contained HTML page that shows records one by one, without network access.

Texts of models and documents are untrusted. They are written into a JSON block, in which every ``<`` is escaped,
and the script puts them into text nodes only. The page's content security policy allows no other script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rag_train.data_synth.inspect.check import without_instruction
from rag_train.data_synth.inspect.records import read_record_file
from rag_train.data_synth.inspect.statistics import task_and_outcome
from rag_train.files import write_text
from rag_train.resumable import Rejected
from rag_train.schema import PreferencePair, Question, Record, SFTRecord, Trajectory
from rag_train.templates import template


def write_page(path: Path, output: Path, most: int = 2000) -> Path:
    """Write a page of the records in ``path``, and of ``<path>.rejected.jsonl`` if it exists, to ``output``.

    If there are more than ``most`` records, the page has ``most`` of them, spread evenly. Raises UserError if
    ``path`` is not a file of records.
    """
    items = list(_items(path))
    if (rejected := Path(f"{path}.rejected.jsonl")).exists():
        items += _items(rejected)
    shown = [items[i * len(items) // most] for i in range(most)] if len(items) > most else items
    data = json.dumps({"name": path.name, "all": len(items), "items": shown}, ensure_ascii=False)
    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("view.css", "view.js"))
    page = template("data_synth/inspect/view.html.jinja").render(
        name=path.name,
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=Markup(data.replace("<", "\\u003c")),
    )
    write_text(output, page)
    return output


def _items(path: Path) -> Iterator[dict[str, Any]]:
    for line, record in read_record_file(path).records.items():
        task, outcome = task_and_outcome(record)
        yield {
            "line": line,
            "kind": type(record).__name__,
            "task": task,
            "outcome": outcome,
            "title": _title(record),
            "record": record.model_dump(mode="json"),
        }


def _title(record: Record) -> str:
    """Return the record's question, or the first labelled line of its prompt; the id if the prompt has none."""
    match record:
        case Trajectory() | Question():
            return record.question
        case SFTRecord() | PreferencePair():
            return without_instruction(record.prompt).partition("\n")[0].partition(": ")[2] or record.id
        case Rejected():
            return record.text or record.id
    raise TypeError(type(record))


def _hash(text: str) -> str:
    """Return the hash of an inline script or style, in the format of a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
