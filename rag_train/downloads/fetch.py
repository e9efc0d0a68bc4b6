"""Download of a data set at a pinned revision, checked against the hashes of the Hub.

A download that was interrupted continues where it stopped. ``source.json``, next to the files, has the repository,
revision, licence and hashes; if it and the files are as the catalogue wants them, nothing is asked of the network.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_train.downloads.catalogue import CONVERSIONS, DataSet, File
from rag_train.errors import UserError
from rag_train.jobs.files import placed, sha256, write_json
from rag_train.network import begin_reaching_hub, hub_address

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoFile

SOURCE = "source.json"
PARTS = ".download"
"""Folder of the downloaded parts, removed at the end."""
ROOM = 4
"""Free space to ask for, in sizes of the download: archives and Parquet files grow when they are unpacked."""


@dataclass(frozen=True)
class Download:
    """A data set on this machine."""

    name: str
    folder: Path
    source: dict[str, Any]
    new: bool

    @property
    def files(self) -> list[Path]:
        return [self.folder / name for name in self.source["files"]]


def get(name: str, data: DataSet, folder: Path) -> Download:
    """Write the files of ``data`` into ``folder``, if they are not there already.

    Raises UserError if the Hub does not answer, a file is not there or is not the one that was pinned, or the disk
    has too little space.
    """
    if source := _complete(data, folder):
        return Download(name, folder, source, new=False)
    if problem := begin_reaching_hub()():
        remedy = "check the network, or set HF_ENDPOINT to a mirror"
        raise UserError(f"{name}: {hub_address()} does not answer ({problem}); {remedy}")
    with _failures(name):
        pinned = _pinned(data)
        _check_space(folder, sum(file.size for file in pinned.values()))
        written = {file.name: _made(data, file, pinned, folder) for file in data.files}
    source = {"name": name, "title": data.title, "repository": data.repository, "revision": data.revision}
    source |= {"licence": data.licence, "files": written}
    write_json(folder / SOURCE, source)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    return Download(name, folder, source, new=True)


def _complete(data: DataSet, folder: Path) -> dict[str, Any] | None:
    """Return the contents of source.json if the files are those of the pinned revision."""
    try:
        source = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
        same = (source["repository"], source["revision"]) == (data.repository, data.revision)
        whole = all(sha256(folder / file.name) == source["files"][file.name]["sha256"] for file in data.files)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return source if same and whole else None


@contextmanager
def _failures(name: str) -> Iterator[None]:
    """Turn failures of the Hub and malformed files into errors of one line."""
    try:
        yield
    except (UserError, OSError) as error:
        if isinstance(error, UserError) or error.errno is not None:  # of the disk
            raise
        raise _failed(name, error) from error
    except Exception as error:  # of the Hub's client, the network, and damaged files
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> UserError:
    told = " ".join(str(error).split()) or type(error).__name__
    return UserError(f"{name}: the download failed ({told[:300]}); give the same command again to continue")


def _pinned(data: DataSet) -> dict[str, RepoFile]:
    """Return what the Hub says about the parts at the pinned revision: size and hash."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    parts = [part for file in data.files for part in file.parts]
    api = HfApi(endpoint=hub_address())
    told = api.get_paths_info(data.repository, parts, revision=data.revision, repo_type="dataset")
    found = {file.path: file for file in told if isinstance(file, RepoFile)}
    if missing := [part for part in parts if part not in found]:
        raise UserError(
            f"{data.repository} at {data.revision[:7]}: no file {missing[0]}; the mirror may be incomplete, "
            "unset HF_ENDPOINT"
        )
    return found


def _check_space(folder: Path, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < ROOM * size:
        raise UserError(
            f"{folder}: {free / 1e9:,.1f} GB free, but downloading and unpacking need about "
            f"{ROOM * size / 1e9:,.1f} GB; choose another directory"
        )


def _made(data: DataSet, file: File, pinned: dict[str, RepoFile], folder: Path) -> dict[str, Any]:
    """Write ``file`` from its parts; return its size and hash, and those of the parts, for source.json."""
    parts = [_part(data, pinned[part], folder / PARTS) for part in file.parts]
    unfinished = folder / PARTS / f"{file.name}.tmp"
    CONVERSIONS[file.how](parts, unfinished)
    from_parts = {part: sha256(path) for part, path in zip(file.parts, parts, strict=True)}
    written = unfinished.replace(folder / file.name)
    return {"sha256": sha256(written), "bytes": written.stat().st_size, "from": from_parts}


def _part(data: DataSet, told: RepoFile, folder: Path) -> Path:
    """Download a file of the repository, or the rest of it, and compare it with the hash of the Hub."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / told.path.replace("/", "_")
    url = hf_hub_url(
        data.repository, told.path, repo_type="dataset", revision=data.revision, endpoint=hub_address()
    )
    with placed(path), path.open("ab") as file:
        http_get(url, file, resume_size=file.tell(), headers=build_hf_headers(), expected_size=told.size)
    if not _is(told, path):
        path.unlink()
        raise UserError(
            f"{data.repository}: {told.path} is not the file that the Hub describes; give the same command again "
            "to download it anew"
        )
    return path


def _is(told: RepoFile, path: Path) -> bool:
    """Whether a file has the hash that the Hub gives: SHA-256 of large files, git's hash of small ones."""
    if told.lfs:
        return sha256(path) == told.lfs.sha256
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == told.blob_id
