"""The hash of a model's weights, which a machine computes once, and the version of the code."""

from __future__ import annotations

import hashlib
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import pytest

from rag_train import provenance
from rag_train.jobs.files import CACHE_VARIABLE
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


def test_the_version_names_no_commit_of_somebody_elses_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is installed in a virtual environment inside a user's repository, and then committed to it."""

    def git(*arguments: str) -> str:
        person = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", *person, *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    module = tmp_path / ".venv/lib/rag_train/provenance.py"
    module.parent.mkdir(parents=True)
    module.touch()
    (tmp_path / "own.py").touch()
    for command in (["init"], ["add", "own.py"], ["commit", "-m", "Own work"]):
        git(*command)
    monkeypatch.setattr(provenance, "__file__", str(module))
    assert provenance.code_version.__wrapped__() == version("rag-train")
    git("add", str(module))
    git("commit", "-m", "The package's code")
    commit = git("rev-parse", "--short", "HEAD").strip()
    assert provenance.code_version.__wrapped__() == f"{version('rag-train')}-{commit}"
