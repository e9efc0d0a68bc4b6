"""Reading of files that are being written."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rag_train.eval.board.files import Tail, read_object


def tail(path: Path) -> tuple[Tail, list[dict]]:
    rows: list[dict] = []
    return Tail(path, rows.clear, rows.append), rows


@given(st.lists(st.text(), max_size=8), st.lists(st.integers(0, 200), max_size=8))
def test_reads_each_row_once_wherever_the_writer_pauses(tmp_path_factory, texts: list[str], pauses: list[int]):
    path = tmp_path_factory.mktemp("tail") / "rows.jsonl"
    written = [{"text": text} for text in texts]
    whole = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in written).encode()
    reader, rows = tail(path)
    ends = [*sorted(min(pause, len(whole)) for pause in pauses), len(whole)]
    for start, end in zip([0, *ends], ends, strict=False):
        with path.open("ab") as file:
            file.write(whole[start:end])
        reader.look()
        assert rows == written[: whole[:end].count(b"\n")]
    assert rows == written and reader.problem == ""


def test_begins_again_with_a_file_that_was_replaced(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    reader, rows = tail(path)
    reader.look()  # there is no file yet
    path.write_text('{"n": 1}\n{"n": 2}\n')
    reader.look()
    (tmp_path / "new").write_text('{"n": 3}\n{"n": 4}\n')
    (tmp_path / "new").replace(path)
    reader.look()
    assert rows == [{"n": 3}, {"n": 4}]
    path.write_text('{"n": 5}\n')  # the same file, shorter
    reader.look()
    assert rows == [{"n": 5}]


def test_names_the_first_line_that_is_broken_and_reads_on(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n": 1}\n\xff\n[[\n{"n": 2}\n{"n"')
    reader, rows = tail(path)
    reader.look()
    assert rows == [{"n": 1}, {"n": 2}]
    assert reader.problem == "rows.jsonl, line 2: not a record of rag-train; the line is left out"


def test_names_a_broken_object(tmp_path: Path):
    problems: list[str] = []
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "half.json").write_text('{"a": ')
    (tmp_path / "folder.json").mkdir()
    assert [read_object(tmp_path / name, problems) for name in ("gone.json", "list.json", "half.json")] == [{}] * 3
    assert read_object(tmp_path / "folder.json", problems) == {}
    assert problems == ["list.json: not a JSON object", "half.json: not valid JSON", "folder.json: Is a directory"]
