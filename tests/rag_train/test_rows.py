"""Rows of files in any form, encoding and compression, and files that are damaged."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.questions import ROW

from rag_train.errors import UserError
from rag_train.questions.load import load_questions
from rag_train.schema import Question

ALL = "".join(chr(code) for code in range(32, 0x250)) + "’“。\u2028\x85\t\n😀"
TEXTS = st.text(ALL.replace("<", "").replace("[", "").replace("{", ""), min_size=1).filter(str.strip)


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=1, unique=True)), min_size=1, max_size=4),
    st.sampled_from(["list", "indented list", "data", "lines", "indented objects", "table", "parquet"]),
    st.sampled_from([bytes, gzip.compress, bz2.compress, lambda content: pyarrow.compress(content, "zstd", True)]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.sampled_from([json.dumps, repr, lambda values: f"[{' '.join(map(repr, values))}]"]),
    st.sampled_from([(",", ".csv"), ("\t", ".TSV"), (";", ".csv"), ("\t", ".csv")]),
)
def test_the_same_rows_give_the_same_questions_in_any_file(
    tmp_path: Path,
    rows: Any,
    form: str,
    compress: Callable[[bytes], bytes],
    encoding: str,
    write: Any,
    table: tuple[str, str],
) -> None:
    records = [{"id": i, "question": text, "answers": answers} for i, (text, answers) in enumerate(rows)]
    expected = [Question(id=str(r["id"]), question=r["question"], answers=r["answers"]) for r in records]
    path = tmp_path / "mine.JSON"
    match form:
        case "list" | "indented list":
            text = json.dumps(records, ensure_ascii=form == "list", indent=1 if form != "list" else None)
        case "data":
            text = json.dumps({"version": 1, "data": records}, indent=2)
        case "lines" | "indented objects":
            text = "\n".join(
                json.dumps(r, ensure_ascii=False, indent=None if form == "lines" else 1) for r in records
            )
        case _:
            path = tmp_path / f"mine{table[1]}"
            stream = io.StringIO(newline="")
            writer = csv.writer(stream, delimiter=table[0])
            writer.writerows([list(records[0]), *([r["id"], r["question"], write(r["answers"])] for r in records)])
            text = stream.getvalue()
    if form == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path := tmp_path / "mine.PARQUET")
    else:
        path.write_bytes(compress(text.encode(encoding)))
    assert load_questions(path) == expected


def test_a_damaged_compressed_file_is_one_line(tmp_path: Path) -> None:
    content = gzip.compress((ROW + "\n").encode() * 100)
    (tmp_path / "q.jsonl.gz").write_bytes(content[:-20])
    with pytest.raises(UserError, match=r"cannot read .*gz: damaged .*; download or compress it again"):
        load_questions(tmp_path / "q.jsonl.gz")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            "id,question,answers\n1,who,Paris, France\n",
            "line 2: 4 fields, but the header has 3; write each text that",
        ),
        (
            "id,question,answers,answers\n1,who,a,b\n",
            "q.csv, line 1: two columns are called 'answers'; rename or remove one of the two",
        ),
        ("id;question;answers\n1;who\n", "line 2: 2 fields, but the header has 3; give every row all fields"),
        ('id,question,answers\n1,"who,Paris\n', "line 2: unexpected end of data; quote texts as in CSV"),
        ("q,a\nwho,Paris\n", "line 2: no field of answers among 'q, a': test splits have none; give a split"),
    ],
)
def test_a_row_of_a_table_is_refused_if_its_fields_are_not_the_headers(
    tmp_path: Path, table: str, problem: str
) -> None:
    (tmp_path / "q.csv").write_text(table)
    with pytest.raises(UserError, match=r"q\.csv, ") as caught:
        load_questions(tmp_path / "q.csv")
    assert problem in str(caught.value) and "\n" not in str(caught.value)
