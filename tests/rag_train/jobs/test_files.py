"""Atomic writing of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_train.jobs.files import write_records, write_text
from rag_train.schema import Passage


def test_writers_of_the_same_file_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that finished together shared the name of the temporary file, and one of them stopped."""
    file = tmp_path / "a.jsonl"
    replace = Path.replace

    def interrupted(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        write_text(file, "other")  # another shard writes the file between the two steps of this one
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    write_text(file, "own")
    assert file.read_text() == "own" and list(tmp_path.iterdir()) == [file]


def full_disk(*arguments: object, **options: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.jsonl"
    write_records(file, [Passage(id="1", text="a")])
    before = file.read_bytes()
    with pytest.raises(ZeroDivisionError):
        write_records(file, (Passage(id=str(1 // i), text="b") for i in (1, 0)))
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_text(file, "new")
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]
