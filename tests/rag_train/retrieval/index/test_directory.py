"""What an index build may replace, and what it leaves when it is killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from support.kills import killed
from support.retrieval import edit

from rag_train.errors import UserError
from rag_train.retrieval.index.bm25 import build_bm25
from rag_train.retrieval.index.lucene import build_lucene
from rag_train.retrieval.open import load_index
from rag_train.schema import Passage

OLD = [Passage(id=str(i), text=f"old words {i}") for i in range(3)]
NEW = [Passage(id=str(i), text=f"new words {i}") for i in range(5)]
BUILDS: dict[str, Callable[[list[Passage], Path], object]] = {
    "bm25": lambda passages, directory: build_bm25(passages, directory, shard=2),
    "lucene": lambda passages, directory: build_lucene(passages, directory, shard=3),
}


def files(directory: Path) -> dict[str, bytes]:
    """The files of a directory by name; for Lucene, whose segments have random names, only ours."""
    return {
        path.name: path.read_bytes() for path in directory.iterdir() if path.name in ("passages.jsonl", "data.npy")
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", BUILDS)
def test_a_build_killed_anywhere_loses_nothing_and_is_repeated(kind: str, tmp_path: Path) -> None:
    """Each kill leaves the old index or the new one, at the latest after the next start; a rerun completes it."""
    build = BUILDS[kind]
    build(OLD, tmp_path / "old")
    build(NEW, tmp_path / "new")
    for point in count():
        root = tmp_path / str(point)
        shutil.copytree(tmp_path / "old", root / "index")
        if not killed(lambda to=root / "index": build(NEW, to), point):
            break
        found = root / "index" if (root / "index").exists() else root / ".index.building" / "replaced"
        assert len(load_index(found)) in (len(OLD), len(NEW)), point
        build(NEW, root / "index")
        assert files(root / "index") == files(tmp_path / "new"), point
        assert len(load_index(root / "index").search(["words"], 9)[0]) == len(NEW), point
        assert [path.name for path in root.iterdir()] == ["index"], point
    assert point > 30


def test_the_next_build_puts_back_an_index_that_a_kill_left_hidden(tmp_path: Path) -> None:
    build_bm25(OLD, tmp_path / "index")
    work = tmp_path / ".index.building"
    work.mkdir()
    (work / "lock").touch()
    (tmp_path / "index").rename(work / "replaced")
    with pytest.raises(UserError, match="no passages"):
        build_bm25([], tmp_path / "index")
    assert len(load_index(tmp_path / "index")) == len(OLD)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def add_notes(directory: Path) -> None:
    (directory / "notes.txt").write_text("precious")


CHANGES: dict[str, Callable[[Path], object]] = {
    "a page's manifest": lambda d: (d / "index.json").write_text('{"title": "My thesis"}'),
    "no manifest": lambda d: (d / "index.json").unlink(),
    "notes": add_notes,
    "a folder": lambda d: (d / "thesis").mkdir(),
    "notes in somebody else's manifest": lambda d: (add_notes(d), edit(d, format="somebody-elses")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_directory_with_anything_else_is_never_replaced(change: str, tmp_path: Path) -> None:
    build_bm25(OLD, tmp_path / "index")
    CHANGES[change](tmp_path / "index")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="not part of an index; move it away"):
        build_bm25(NEW, tmp_path / "index")
    assert sorted(tmp_path.rglob("*")) == before


def test_files_added_during_a_build_are_kept(tmp_path: Path) -> None:
    build_bm25(OLD, tmp_path / "index")

    def stream() -> Iterator[Passage]:
        add_notes(tmp_path / "index")
        yield from NEW

    with pytest.raises(UserError, match="notes"):
        build_bm25(stream(), tmp_path / "index")
    assert (tmp_path / "index" / "notes.txt").read_text() == "precious"


def test_a_folder_with_the_name_of_a_working_directory_is_kept(tmp_path: Path) -> None:
    (tmp_path / ".index.building").mkdir()
    (tmp_path / ".index.building" / "shard-00000.json").write_text("precious")
    with pytest.raises(UserError, match="not the working directory of an index build"):
        build_bm25(NEW, tmp_path / "index")
    assert (tmp_path / ".index.building" / "shard-00000.json").read_text() == "precious"


@pytest.mark.parametrize("kind", BUILDS)
def test_a_second_build_of_the_same_index_is_refused(kind: str, tmp_path: Path) -> None:
    def stream() -> Iterator[Passage]:
        with pytest.raises(UserError, match="another process is building this index"):
            BUILDS[kind](OLD, tmp_path / "index")
        yield from NEW

    BUILDS[kind](stream(), tmp_path / "index")  # type: ignore[arg-type]
    assert len(load_index(tmp_path / "index")) == len(NEW)
