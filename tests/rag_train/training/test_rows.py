"""Token ids on disk: made once, resumed after a kill, shared by processes, read without being kept in memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.training import TOKENIZER, sft_record, write

from rag_train import identity
from rag_train.errors import UserError
from rag_train.jobs.files import CACHE_VARIABLE
from rag_train.schema import SFTRecord
from rag_train.training import rows as module
from rag_train.training.data import dpo_rows, sft_rows
from rag_train.training.packing import OPEN_ROWS, distinct_runs, pack, sortable
from rag_train.training.rows import TOKENS, LazyRows, TokenColumn, largest_token, stored_rows
from rag_train.training.tree import lay_out

COLUMNS = {"ids": TOKENS}


def numbered(place: str, record: SFTRecord) -> dict | str:
    """A row whose tokens tell the record's number; none for every fifth record."""
    number = int(record.id)
    return {"ids": [number] * (number % 4)} if number % 5 else "fifth"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(module, "PART", 3)
    return tmp_path / "cache"


def stored(path: Path, encode=numbered, **settings):
    return stored_rows(path, SFTRecord, encode, COLUMNS, settings, "fix it")


def ids(rows) -> list[list[int]]:
    return [row["ids"] for row in rows]


def test_a_killed_run_continues_after_its_last_part_and_later_runs_read_only(tmp_path: Path, cache: Path):
    path = write(tmp_path / "x.jsonl", [sft_record(i) for i in range(11)])
    encoded: list[int] = []

    def encode(stop: int, place: str, record: SFTRecord):
        if int(record.id) == stop:
            raise KeyboardInterrupt
        encoded.append(int(record.id))
        return numbered(place, record)

    with pytest.raises(KeyboardInterrupt):
        stored(path, partial(encode, 7))
    rows, refused = stored(path, partial(encode, -1))
    assert encoded == [*range(7), *range(6, 11)], "the parts of three that were complete are not made again"
    assert ids(rows) == [[n] * (n % 4) for n in range(11) if n % 5] and refused == Counter(fifth=3)
    again, refused = stored(path, partial(encode, 0))
    assert ids(again) == ids(rows) and refused == Counter(fifth=3)
    assert {file.suffix for file in cache.rglob("*.*")} == {".arrow"}
    assert largest_token(rows) == 9


def test_other_contents_or_settings_are_other_rows(tmp_path: Path, cache: Path):
    path = write(tmp_path / "x.jsonl", [sft_record(i) for i in range(2)])
    assert len(stored(path)[0]) == 1
    assert len(stored(path, lambda place, record: {"ids": [1]}, length=9)[0]) == 2
    write(path, [sft_record(i) for i in range(3)])
    assert len(stored(path)[0]) == 2
    assert len(list((cache / "rows").iterdir())) == 3
    for max_tokens, chat in ((500, False), (400, False)):
        sft_rows(path, TOKENIZER, max_tokens=max_tokens, chat=chat)
    assert len(list((cache / "rows").iterdir())) == 5


@pytest.mark.parametrize(
    "name", ["formats.deeprag", "formats.prompting", "training.masking", "training.data", "llm.checkpoint"]
)
def test_rows_follow_the_modules_that_make_them(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    """Who changed a mask or a grammar trained on the rows of the old one."""
    path = write(tmp_path / "x.jsonl", [sft_record(1)])
    sft_rows(path, TOKENIZER, max_tokens=500, chat=False)
    source = identity._source

    def changed(each: str, file):
        return source(each, file)._replace(text="changed") if each.endswith(name) else source(each, file)

    monkeypatch.setattr(identity, "_source", changed)
    sft_rows(path, TOKENIZER, max_tokens=500, chat=False)
    assert len(list((cache / "rows").iterdir())) == 2


@pytest.mark.slow
def test_other_processes_wait_for_the_first(tmp_path: Path):
    path = write(tmp_path / "x.jsonl", [sft_record(1)])
    begun, go_on = Event(), Event()

    def slow(place: str, record: SFTRecord):
        begun.set()
        assert go_on.wait(30)
        return {"ids": [7]}

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(stored, path, slow)
        assert begun.wait(30)
        second = pool.submit(stored, path, lambda place, record: pytest.fail("made twice"))
        go_on.set()
        assert ids(first.result()[0]) == ids(second.result()[0]) == [[7]]


@pytest.mark.slow
def test_mistakes_are_told_in_a_line(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"none.jsonl: No such file or directory; fix it"):
        stored(tmp_path / "none.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for read in (sft_rows, dpo_rows):
        with pytest.raises(UserError, match=r"empty.jsonl: no example is left .*; create the file again$"):
            read(empty, TOKENIZER, max_tokens=500, chat=False, balance=True)
    path = write(tmp_path / "x.jsonl", [sft_record(1)])
    stored(path)
    for part in cache.rglob("*.arrow"):
        part.write_bytes(part.read_bytes()[:40])
    with pytest.raises(UserError, match=r"damaged .*; delete it"):
        stored(path)
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(UserError, match="Not a directory; free space, or set RAG_TRAIN_CACHE to a directory"):
        stored(path)


@pytest.mark.slow
@given(data=st.data(), count=st.integers(1, 12))
def test_a_column_reads_the_selected_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, count: int
):
    path = write(tmp_path_factory.mktemp("x") / "x.jsonl", [sft_record(i) for i in range(count + 1)])
    rows, _ = stored(path)
    if data.draw(st.booleans()):
        rows = rows.select(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=9)))
    column = TokenColumn(rows, "ids")
    assert [tokens.tolist() for tokens in column] == ids(rows)
    assert column.lengths().tolist() == [len(tokens) for tokens in ids(rows)]


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 300), max_size=6), max_size=12))
def test_distinct_tokens_are_those_of_the_tree(sequences: list[list[int]]):
    runs = distinct_runs(list(map(sortable, sequences)))
    assert sum(added for _, added in runs) == len(lay_out(sequences).ids)
    assert sorted(sequences) == sorted(sequences, key=sortable)


@pytest.mark.slow
def test_packing_keeps_no_tokens():
    """Sequences of 400 tokens, of which all tries together took 164 bytes a token."""

    def sequence(number: int) -> list[int]:
        return np.random.default_rng(number).integers(0, 1000, 400).tolist()

    count = 64 * OPEN_ROWS
    tracemalloc.start()
    packed = pack(LazyRows(count, sequence), 1200, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(map(len, packed)) == count
    assert peak < 400 * count * 4, "less than the token ids"
