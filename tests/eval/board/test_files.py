"""Reading of files that are being written."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rag_train.eval.board.files import Tail


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
