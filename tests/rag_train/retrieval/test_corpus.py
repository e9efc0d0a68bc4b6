"""Corpus files and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_train.errors import UserError
from rag_train.retrieval.corpus import read_corpus
from rag_train.schema import Passage


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("beir.jsonl", '{"_id": "7", "title": "A \\"b\\"", "text": "Some text.", "metadata": {}}\n'),
        ("docid.jsonl", '\ufeff{"docid": 7, "title": "A \\"b\\"", "text": "Some text."}'),
        ("flashrag.jsonl", '{"id": "7", "contents": "\\"A \\"b\\"\\"\\nSome text."}\n\n'),
        ("dpr.tsv", 'id\ttext\ttitle\r\n7\tSome text.\t"A ""b"""\r\n'),
    ],
)
def test_reads_the_common_formats(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert list(read_corpus(tmp_path / name)) == [Passage(id="7", title='A "b"', text="Some text.")]


GOOD = b'{"id": "1", "text": "fine"}\n'


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("c.jsonl", GOOD + b'{"id": "2", "text": "cut', "line 2: invalid JSON"),
        ("c.jsonl", GOOD + b"[" * 100_000, "line 2: invalid JSON"),
        ("c.jsonl", GOOD + b"[1]", "line 2: not a JSON object"),
        ("c.jsonl", GOOD + b'{"id": "2", "title": "t"}', "line 2: no text"),
        ("c.jsonl", GOOD + b'{"id": "2", "text": " "}', "line 2: the text is blank"),
        ("c.jsonl", GOOD + b'{"id": "2", "text": "\\ud800"}', "surrogates not allowed"),
        ("c.jsonl", GOOD + b'{"text": "x"}', "line 2: no id"),
        ("c.jsonl", GOOD + b"\n" + GOOD, "line 3: duplicate id '1', first on line 1"),
        ("c.jsonl", GOOD + b'{"id": "2", "text": "\xe9"}', "line 2: not UTF-8"),
        ("c.jsonl", b"\n\n", "empty"),
        ("c.tsv", b"", "empty"),
        ("c.tsv", b"1\tx\ty\n", "line 1: not DPR's header"),
        ("c.tsv", b"id\ttext\ttitle\n1\tx\n", "line 2: 2 fields instead of 3"),
        ("c.tsv", b'id\ttext\ttitle\n1\t"open\ty\n2\tx\ty\n', "line 3: unexpected end of data"),
        ("c.tsv", b"id\ttext\ttitle\n1\t" + b"x" * 200_000 + b"\ty\n", "line 2: field larger than field limit"),
        ("c.parquet", GOOD, "unknown extension"),
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
