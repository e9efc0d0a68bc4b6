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

from rag_train.data_synth.inspect.check import without_instruction
from rag_train.data_synth.inspect.records import read_record_file
from rag_train.data_synth.inspect.statistics import task_and_outcome
from rag_train.jobs.files import write_text
from rag_train.jobs.items import Rejected
from rag_train.schema import PreferencePair, Question, Record, SFTRecord, Trajectory
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
        task, outcome = task_and_outcome(record)
        yield {
            "line": line,
            "kind": type(record).__name__,
            "task": task,
            "outcome": outcome,
            "title": _title(record),
            "question": _question_id(record),
            "record": record.model_dump(mode="json"),
        }


def _question_id(record: Record) -> str:
    """Return the id of the question that a record was made from, with which the ids of training data begin."""
    match record:
        case Trajectory():
            return record.question_id
        case Question():
            return record.id
        case SFTRecord() | PreferencePair() | Rejected():
            return record.id.partition("/")[0]
    raise TypeError(type(record))


def _title(record: Record) -> str:
    """Return the question of a record or of its prompt; else the prompt's first labelled line, or the id."""
    match record:
        case Trajectory() | Question():
            return record.question
        case SFTRecord() | PreferencePair():
            lines = [line.partition(": ") for line in without_instruction(record).split("\n")]
            asked = [text for label, _, text in lines if label in ("Question", "Query")]
            return [*asked, lines[0][2]][0] or record.id
        case Rejected():
            return record.text or record.id
    raise TypeError(type(record))
