"""Index directories: ``index.json`` lists every other file with its size and hash, and is written last.

A directory therefore holds a complete index or none: truncated, changed and foreign directories are rejected.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from tokenize import TokenError
from typing import Any, ClassVar, Self
from zipfile import BadZipFile

import numpy as np
from pydantic import ValidationError

from rag_train.errors import UserError
from rag_train.jobs.files import locked, sha256
from rag_train.retrieval.corpus import PassageStore, encode
from rag_train.schema import Passage, Record

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
"""The two files of the `PassageStore` that every index contains."""

REMEDY = "rebuild it with `rag-train index`"

MANIFEST = "index.json"

_FORMATS = "rag-train-"
"""Start of the name of every format."""

_READERS = {"tantivy/.tantivy-meta.lock", "tantivy/.tantivy-writer.lock"}
"""Empty files that tantivy adds when it opens an index."""

_LOCK = "lock"
_CLEARING = "clearing"
_REPLACED = "replaced"
"""Contents of a working directory besides the build's own: the lock of the process that builds, the mark of an
unfinished `clear`, and the index that is being replaced."""


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
        encoder_sha256: SHA-256 of the weights of each model of the encoder; empty if there is none.
        files: files by name relative to the directory.
    """

    format: str
    version: int
    config: dict[str, Any]
    passages: int
    corpus_sha256: str
    encoder_sha256: tuple[str, ...] = ()
    files: dict[str, File]


class StoredIndex:
    """An index directory that is open. A subclass has ``load``, ``search`` and ``write``, which builds a directory.

    Attributes:
        format: the kind of index, as in `Manifest`.
        version: version of the format.
        passages: the passages in corpus order.
        corpus_sha256: SHA-256 of the passages as JSON Lines; identifies the corpus in records made with this index.
        identity: all that its results depend on; see `rag_train.retrieval.base.Retriever`.
    """

    format: ClassVar[str]
    version: ClassVar[int]
    write: ClassVar[Callable[..., int]]

    def __init__(self, passages: PassageStore, corpus_sha256: str, **settings: Any):
        self.passages = passages
        self.corpus_sha256 = corpus_sha256
        own = {"index": self.format, "version": self.version}
        self.identity: Any = own | settings | {"corpus_sha256": corpus_sha256}

    def __len__(self) -> int:
        return len(self.passages)

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Open a directory that `write` has built. Raises UserError if it is not a whole index of this kind."""
        raise NotImplementedError

    @classmethod
    def build(cls, passages: Iterable[Passage], *settings: Any) -> Self:
        """Index passages into files that are gone with the index; ``settings`` are those of `write`.

        Raises UserError as `write` does, for example if there are no passages.
        """
        with TemporaryDirectory() as directory:
            cls.write(passages, Path(directory, "index"), *settings)
            return cls.load(Path(directory, "index"))


def write_manifest(
    directory: Path,
    format: str,
    version: int,
    config: dict[str, Any],
    passages: int,
    encoder_sha256: tuple[str, ...] = (),
) -> None:
    """Write ``index.json`` for the files of ``directory``, which makes them an index."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / MANIFEST)
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
        encoder_sha256=encoder_sha256,
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
            if Path(name).is_absolute() or ".." in Path(name).parts:  # a stranger's name
                raise changed(directory, MANIFEST)
            path = directory / name
            size = path.stat().st_size
            if not path.is_file():  # reading a pipe or a device would not end
                raise changed(directory, name)
            if size != file.bytes:
                raise UserError(f"index {directory}: {name} has {size} bytes, not {file.bytes}; {REMEDY}")
        for name, file in manifest.files.items():
            if sha256(directory / name) != file.sha256:
                raise changed(directory, name)
    except OSError as error:
        raise unreadable(directory, error) from error
    return manifest


def open_passages(directory: Path, passages: int) -> PassageStore:
    """Open the passages of a checked index directory; they stay on disk.

    Raises:
        UserError: if the offsets are not those of ``passages`` lines.
        OSError: if a file cannot be read.
    """
    path = directory / PASSAGES
    offsets = load_array(directory, OFFSETS, np.dtype(np.int64))
    if len(offsets) != passages + 1 or not rising(offsets, path.stat().st_size):
        raise inconsistent(directory, OFFSETS)
    return PassageStore(path, offsets)


def load_array(directory: Path, name: str, dtype: np.dtype, dimensions: int = 1) -> np.ndarray:
    """Map an array file, which may be a stranger's: never a pickle, and only of the given type.

    Raises:
        UserError: if the file is not an array of this type and number of dimensions.
        OSError: if it cannot be read.
    """
    try:
        array = np.load(directory / name, mmap_mode="r")
    except (ValueError, EOFError, MemoryError, OverflowError, SyntaxError, TokenError, BadZipFile) as error:
        raise inconsistent(directory, name) from error
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != dimensions:
        raise inconsistent(directory, name)
    return array


def rising(starts: np.ndarray, end: int) -> bool:
    """Return whether ``starts`` begins with 0, never falls, and ends with ``end``."""
    return bool(len(starts) and starts[0] == 0 and starts[-1] == end and (starts[1:] >= starts[:-1]).all())


@contextmanager
def working_directory(directory: Path, main: bool = True) -> Iterator[Path]:
    """Yield the working directory in which the index ``directory`` is built, locked: ``.NAME.building``.

    The build writes the index into the subdirectory ``index`` and ends with `publish`. The working directory of a
    killed build stays, so that the next build can continue. If the kill interrupted `publish` or `clear`, it is
    undone or completed here.

    Args:
        main: whether this is the process that locks and publishes, if several build together.

    Raises:
        UserError: if ``directory`` holds anything except an index, if another process is building it, or if the
            build raises an OSError.
    """
    work = directory.with_name(f".{directory.name}.building")
    try:
        if not main:
            yield work
            return
        _check_replaceable(directory)
        with _locked(work):
            _recover(work, directory)
            yield work
    except OSError as error:
        problem = error.strerror or error  # NumPy's errors have no number
        raise UserError(
            f"cannot write index {directory}: {problem}; choose a writable place with enough free space"
        ) from error


def shards(
    passages: Iterable[Passage],
    work: Path,
    settings: Any,
    size: int,
    progress: Callable[[int], None] | None = None,
    main: bool = True,
) -> Iterator[tuple[list[Passage], Path]]:
    """Yield the passages in blocks of ``size``, and write them with their offsets into the index being built.

    Each block comes with the path, in ``work``, of what the build makes of it. The path is named by a hash of
    ``settings``, of the block, and of all blocks before it: what a killed build left there can be used again.

    Args:
        settings: what a block's file depends on besides the passages, as JSON values.
        progress: called with the number of passages done so far.
        main: whether this is the process that writes, if several build together.

    Raises:
        UserError: if there are no passages.
    """
    passages, index, offsets = iter(passages), work / "index", [0]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    if main:
        shutil.rmtree(index, ignore_errors=True)
        index.mkdir()
    with (index / PASSAGES if main else Path(os.devnull)).open("wb") as file:
        while block := list(islice(passages, size)):
            lines = [encode(passage) for passage in block]
            file.write(b"".join(lines))
            digest.update(b"".join(lines))
            offsets.extend(offsets[-1] + np.cumsum(list(map(len, lines))))
            yield block, work / f"{len(offsets) - 1:010}-{digest.hexdigest()[:16]}"
            if progress:
                progress(len(offsets) - 1)
    if len(offsets) == 1:
        if main:
            clear(work)
        raise UserError("no passages to index; give a corpus with at least one")
    if main:
        np.save(index / OFFSETS, np.array(offsets, dtype=np.int64))


def publish(work: Path, directory: Path) -> None:
    """Move the finished index from its working directory to its place, replacing an existing index."""
    _check_replaceable(directory)  # again: a build can take days
    if directory.exists():
        directory.rename(work / _REPLACED)
    (work / "index").rename(directory)
    clear(work)


def clear(work: Path) -> None:
    """Empty a working directory; if this is interrupted, the next build repeats it."""
    (work / _CLEARING).touch()
    for name in _names(work) - {_LOCK, _CLEARING}:
        _remove(work / name)
    (work / _CLEARING).unlink()


def another_corpus(work: Path) -> UserError:
    """Return the error for a build that cannot continue the unfinished build in ``work``."""
    return UserError(
        f"{work}: unfinished build of another corpus or with other settings; delete that directory and start again"
    )


def changed(directory: Path, name: str) -> UserError:
    """Return the error for a file that differs from its entry in ``index.json``."""
    return UserError(f"index {directory}: {name} was changed after it was written; {REMEDY}")


def inconsistent(directory: Path, name: str) -> UserError:
    """Return the error for a file whose contents cannot be an index's, although its hash is right."""
    return UserError(f"index {directory}: the contents of {name} are not those of an index; {REMEDY}")


def unreadable(directory: Path, error: OSError) -> UserError:
    """Return the error for a file that cannot be read."""
    return UserError(f"index {directory}: {error.filename}: {error.strerror}; {REMEDY}")


def _check_replaceable(directory: Path) -> None:
    """Raise UserError unless ``directory`` is missing, empty, or exactly an index: a manifest and files it lists.

    Listed files that are missing or damaged do not matter.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UserError(f"{directory} is a file; choose another directory")
    names = {path.relative_to(directory).as_posix() for path in directory.rglob("*")}
    if foreign := names - _own_names(directory):
        raise UserError(
            f"{directory} holds {min(foreign)}, which is not part of an index; "
            "move it away or choose another directory"
        )


def _own_names(directory: Path) -> set[str]:
    """Return the files of a manifest of ours, with itself and their folders; none if the manifest is not ours."""
    try:
        manifest = Manifest.model_validate(_read(directory))
    except (UserError, ValidationError):
        return set()
    if not manifest.format.startswith(_FORMATS):
        return set()
    folders = {str(parent) for name in manifest.files for parent in PurePosixPath(name).parents}
    return {MANIFEST, *manifest.files, *folders, *_READERS}


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Create and lock a working directory, and remove it at the end if it is empty but for the lock.

    Raises UserError if ``work`` holds anything else, or if another process holds the lock.
    """
    work.mkdir(parents=True, exist_ok=True)
    if (names := _names(work)) and _LOCK not in names:
        raise UserError(f"{work} is not the working directory of an index build; move it away")
    with locked(work / _LOCK, f"{work}: another process is building this index; wait for it or stop it"):
        try:
            yield
        finally:
            if _names(work) == {_LOCK}:
                (work / _LOCK).unlink()
                work.rmdir()


def _recover(work: Path, directory: Path) -> None:
    if (work / _REPLACED).exists() and not directory.exists():
        (work / _REPLACED).rename(directory)
    _remove(work / _REPLACED)
    if (work / _CLEARING).exists():
        clear(work)


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def _remove(path: Path) -> None:
    """Remove a file or a directory, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
