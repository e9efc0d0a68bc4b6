"""Corpus files and their errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rag_train.errors import UserError
from rag_train.retrieval.corpus import read_corpus
from rag_train.schema import Passage


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("beir.jsonl", '{"_id": "7", "title": "A \\"b\\"", "text": "Some text.", "metadata": {}}\n'),
        ("title.json", '{"id": 7, "contents": "A \\"b\\"\\nSome text."}'),
        ("docid.jsonl", '\ufeff{"docid": 7, "title": "A \\"b\\"", "text": "Some text."}'),
        ("flashrag.jsonl", '{"id": "7", "contents": "\\"A \\"b\\"\\"\\nSome text."}\n\n'),
        ("title.jsonl", '{"id": 7, "title": "A \\"b\\"", "contents": "A \\"b\\"\\nSome text."}\n'),
        ("atlas.jsonl", '{"id": "7", "title": "A \\"b\\"", "section": "Life", "text": "Some text."}\n'),
        ("dpr.tsv", 'id\ttext\ttitle\r\n7\tSome text.\t"A ""b"""\r\n'),
        ("mine.CSV", 'id,title,text\n7,"A ""b""",Some text.\n'),
        ("list.json", '[\n{"id": "7", "title": "A \\"b\\"", "text": ["Some ", "text."]}\n]'),
    ],
)
def test_reads_the_common_formats(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert list(read_corpus(tmp_path / name)) == [Passage(id="7", title='A "b"', text="Some text.")]


def test_the_first_line_of_contents_is_left_out_only_where_it_is_the_title(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    contents = "Aaron is a prophet.\nHe lived in Egypt."
    for title, first, text in (
        ("Aaron", "", contents),
        ("Aaron", "Aaron\n", contents),
        ("Café", '"Cafe\u0301"\n', contents),
        ("", '"Aaron"\n', contents),
    ):
        path.write_text(json.dumps({"id": "0", "title": title, "contents": first + text}))
        assert [(p.title, p.text) for p in read_corpus(path)] == [(title or "Aaron", text)]


def test_blank_rows_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"title": "", "text": ""},
        {"text": None},
        {"text": "x"},
        {"title": "t", "text": " "},
        {"contents": "\n"},
    ]
    path = tmp_path / "c.jsonl.gz"
    lines = [json.dumps({"_id": number} | row) + "\n" for number, row in enumerate(rows)]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    assert [passage.id for passage in read_corpus(path)] == ["2", "3"]
    assert "c.jsonl.gz: 3 rows without text left out" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("of_the_hub", [False, True])
def test_kilts_pages_give_their_paragraphs(tmp_path: Path, of_the_hub: bool) -> None:
    text: Any = ["Ann\n", "Ann was a poet.\n", "Section::::Life.\n", "BULLET::::- Born in Ulm.\n", "\n"]
    page = {"_id": "12", "wikipedia_id": "12", "wikipedia_title": "Ann", "anchors": []}
    path = tmp_path / "kilt_knowledgesource.json"
    path.write_text(json.dumps(page | {"text": {"paragraph": text} if of_the_hub else text}))
    assert list(read_corpus(path)) == [
        Passage(id="12/1", title="Ann", text="Ann was a poet."),
        Passage(id="12/3", title="Ann", text="Born in Ulm."),
    ]


GOOD = b'{"id": "1", "text": "fine"}\n'


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("c.jsonl", GOOD + b'{"id": "2", "text": "cut', "line 2: invalid JSON"),
        ("c.jsonl", GOOD + b"[" * 100_000, "line 2: invalid JSON"),
        ("c.jsonl", GOOD + b"[1]", "line 2: not a JSON object"),
        ("c.jsonl", GOOD + b'{"id": "2", "title": "t"}', "line 2: no text"),
        ("c.jsonl", b'{"id": "2", "text": " "}', "empty"),
        ("c.jsonl", GOOD + b'{"id": "2", "text": [3]}', "line 2: no text"),
        ("c.jsonl", GOOD + b'{"id": "2", "wikipedia_title": "A", "text": "x"}', "line 2: not a page of KILT's"),
        ("c.jsonl", GOOD + b'{"id": "2", "text": "\\ud800"}', "surrogates not allowed"),
        ("c.jsonl", GOOD + b'{"text": "x"}', "line 2: no id"),
        ("c.jsonl", GOOD + b"\n" + GOOD, "line 3: duplicate id '1', first on line 1"),
        ("c.jsonl", GOOD + b'{"id": "2", "text": "\xe9"}', "line 2: not UTF-8"),
        ("c.jsonl", b"\n\n", "empty"),
        ("c.tsv", b"", "empty"),
        ("c.tsv", b"1\tx\ty\n2\tx\ty\n", "line 2: no id"),
        ("c.tsv", b"id\ttext\ttitle\n1\tx\n", "line 2: 2 fields, but the header has 3"),
        ("c.tsv", b'id\ttext\ttitle\n1\t"open\ty\n2\tx\ty\n', "line 3: unexpected end of data"),
        ("c.tsv", b"id\ttext\ttitle\n1\t" + b"x" * 200_000 + b"\ty\n", "line 2: field larger than field limit"),
        ("missing.jsonl", None, "No such file"),
    ],
)
def test_errors_are_one_line_with_file_and_line_number(
    tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(read_corpus(tmp_path / name))
    message = str(caught.value)
    assert problem in message and name in message and "; " in message and "\n" not in message
