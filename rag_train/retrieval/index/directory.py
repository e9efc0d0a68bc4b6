"""Index directories: ``index.json`` lists every other file with its size and hash, and is written last.

A directory therefore holds a complete index or none: truncated, changed and foreign directories are rejected.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from rag_train.errors import UserError
from rag_train.files import sha256
from rag_train.retrieval.corpus import PassageStore
from rag_train.schema import Record

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
"""The two files of the `PassageStore` that every index contains."""

REMEDY = "rebuild it with `rag-train index`"

MANIFEST = "index.json"


class File(Record):
    """Size and hash of a file."""

    bytes: int
    sha256: str


class Manifest(Record):
    """Contents of ``index.json``.

    Attributes:
        format: the kind of index, such as ``rag-train-bm25``.
        version: version of the format.
        config: settings that the index was built with and must be searched with.
        passages: number of passages.
        corpus_sha256: SHA-256 of the passages as JSON Lines; identifies the corpus in records made with the index.
        files: files by name relative to the directory.
    """

    format: str
    version: int
    config: dict[str, Any]
    passages: int
    corpus_sha256: str
    files: dict[str, File]


def write_manifest(directory: Path, format: str, version: int, config: dict[str, Any], passages: int) -> None:
    """Write ``index.json`` for the files of ``directory``, which makes them an index."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    files = {
        path.relative_to(directory).as_posix(): File(bytes=path.stat().st_size, sha256=sha256(path))
        for path in paths
    }
    manifest = Manifest(
        format=format,
        version=version,
        config=config,
        passages=passages,
        corpus_sha256=files[PASSAGES].sha256,
        files=files,
    )
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def index_format(directory: Path) -> str:
    """Return the format of the index in a directory. Raises UserError if the directory is not an index."""
    return str(_read(directory).get("format"))


def read_manifest(directory: Path, format: str, version: int, files: Collection[str] | None = None) -> Manifest:
    """Read ``index.json`` and check the index: format, version, and the size and SHA-256 of every file.

    Args:
        files: the names of all files of the index, if they are fixed.

    Raises:
        UserError: if the directory is missing, not an index of this format, incomplete, damaged, or of another
            version.
    """
    read = _read(directory)
    if read.get("format") != format:
        raise UserError(f"index {directory}: not a {format} index; {REMEDY}")
    if read.get("version") != version:
        raise UserError(
            f"index {directory}: version {read.get('version')!r}, but this rag-train reads {version}; {REMEDY}"
        )
    try:
        manifest = Manifest.model_validate(read)
    except ValidationError as error:
        raise changed(directory, MANIFEST) from error
    if files is not None and set(manifest.files) != set(files):
        raise UserError(f"index {directory}: {MANIFEST} does not list the files of an index; {REMEDY}")
    try:
        for name, file in manifest.files.items():
            size = _inside(directory, name).stat().st_size
            if size != file.bytes:
                raise UserError(f"index {directory}: {name} has {size} bytes, not {file.bytes}; {REMEDY}")
        for name, file in manifest.files.items():
            if sha256(directory / name) != file.sha256:
                raise changed(directory, name)
    except OSError as error:
        raise unreadable(directory, error) from error
    return manifest


def open_passages(directory: Path, in_memory: bool = False) -> PassageStore:
    """Open the passages of a checked index directory; they stay on disk unless ``in_memory``."""
    path = directory / PASSAGES
    if in_memory:
        return PassageStore(path.read_bytes(), np.load(directory / OFFSETS))
    return PassageStore(_Lines(path), np.load(directory / OFFSETS, mmap_mode="r"))


class _Lines:
    """A file that can be sliced like bytes. It is not mapped: each read would map 16 pages that stay in memory."""

    def __init__(self, path: Path):
        self._file = path.open("rb")

    def __getitem__(self, at: slice) -> bytes:
        return os.pread(self._file.fileno(), at.stop - at.start, at.start)


@contextmanager
def working_directory(directory: Path) -> Iterator[Path]:
    """Yield the path of the working directory in which the index ``directory`` is built: ``.NAME.building``.

    The build writes the index into the subdirectory ``index`` and ends with `publish`. The working directory of a
    killed build stays, so that the next build can continue.

    Raises:
        UserError: if ``directory`` contains anything except an index, or if the build raises an OSError.
    """
    try:
        _check_replaceable(directory)
        yield directory.with_name(f".{directory.name}.building")
    except OSError as error:
        raise UserError(
            f"cannot write index {directory}: {error.strerror}; choose a writable place with enough free space"
        ) from error


def publish(work: Path, directory: Path) -> None:
    """Move the finished index from its working directory to its place, replacing an existing index."""
    replaced = directory.with_name(f".{directory.name}.replaced")
    if directory.exists():
        directory.rename(replaced)
    (work / "index").rename(directory)
    shutil.rmtree(replaced, ignore_errors=True)
    shutil.rmtree(work)


def another_corpus(work: Path) -> UserError:
    """Return the error for a build that cannot continue the unfinished build in ``work``."""
    return UserError(f"{work}: unfinished build of another corpus; delete that directory and start again")


def changed(directory: Path, name: str) -> UserError:
    """Return the error for a file that differs from its entry in ``index.json``."""
    return UserError(f"index {directory}: {name} was changed after it was written; {REMEDY}")


def unreadable(directory: Path, error: OSError) -> UserError:
    """Return the error for a file that cannot be read."""
    return UserError(f"index {directory}: {error.filename}: {error.strerror}; {REMEDY}")


def _check_replaceable(directory: Path) -> None:
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UserError(f"{directory} is a file; choose another directory")
    names = {path.name for path in directory.iterdir()}
    if names and MANIFEST not in names:
        raise UserError(f"{directory} contains files that are not an index; choose another directory")


def _read(directory: Path) -> dict[str, Any]:
    try:
        manifest: Any = json.loads((directory / MANIFEST).read_bytes())
    except OSError as error:
        raise UserError(f"index {directory}: no readable {MANIFEST} ({error.strerror}); {REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"index {directory}: {MANIFEST} is not JSON; {REMEDY}") from error
    if not isinstance(manifest, dict):
        raise UserError(f"index {directory}: not an index of rag-train; {REMEDY}")
    return manifest


def _inside(directory: Path, name: str) -> Path:
    """Return the path of a listed file. Raises UserError if an untrusted name leads out of the directory."""
    path = directory / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise changed(directory, MANIFEST)
    return path
