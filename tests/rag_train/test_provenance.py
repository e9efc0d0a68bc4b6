"""The hash of a model's weights, which a machine computes once."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rag_train.files import CACHE_VARIABLE
from rag_train.provenance import weights_sha256


def expected(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def test_weights_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    reads, digest = [], hashlib.file_digest

    def counted(file, name: str):
        reads.append(file.name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    assert weights_sha256(str(tmp_path)) is None
    for name in ("b", "a"):
        (tmp_path / f"{name}.safetensors").write_text(name)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(weights_sha256, [str(tmp_path)] * 16))
    assert found == {expected(b"a", b"b")} and len(reads) == 2
    (tmp_path / "a.safetensors").write_text("changed")
    assert weights_sha256(str(tmp_path)) == expected(b"changed", b"b")
    assert weights_sha256(str(tmp_path)) == expected(b"changed", b"b") and len(reads) == 4


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    (tmp_path / "a.safetensors").write_bytes(b"a")
    assert weights_sha256(str(tmp_path)) == expected(b"a")
