"""The parts of a machine: processor, memory, disk, browser, and the accelerators that PyTorch sees."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rag_train.provenance import cores

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "firefox", "microsoft-edge")
_INSTRUCTIONS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "bf16", "amx_bf16": "AMX", "bf16": "bf16"}
"""Flags of Linux's /proc/cpuinfo that PyTorch and vLLM make use of, and their names."""


@dataclass(frozen=True)
class Processor:
    """A processor; ``cores`` are those that this process may use."""

    name: str
    cores: int
    instructions: list[str]


@dataclass(frozen=True)
class Space:
    """Bytes of memory or of a disk."""

    total: int
    free: int


@dataclass(frozen=True)
class Accelerator:
    """A GPU or another device of PyTorch, with its memory in bytes."""

    name: str
    memory: int
    bf16: bool


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    """Return the processor, on Linux with its instructions."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    instructions = dict.fromkeys(label for flag, label in _INSTRUCTIONS.items() if flag in present)
    return Processor(name[1] if name else platform.processor() or platform.machine(), cores(), list(instructions))


def memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> Space:
    """Return the main memory, at most what the container may use."""
    import psutil

    found = psutil.virtual_memory()
    try:
        allowed = int(limit.read_text())
    except (OSError, ValueError):  # no container, or "max"
        allowed = found.total
    return Space(min(found.total, allowed), min(found.available, allowed))


def disk(place: Path = Path()) -> Space:
    """Return the disk that ``place`` is on."""
    usage = shutil.disk_usage(place)
    return Space(usage.total, usage.free)


LEAST_DRIVER = {"12": 525, "13": 580}
"""Oldest NVIDIA driver (its first number, on Linux) for each major version of CUDA (release notes, table 3)."""


def nvidia() -> list[tuple[str, str]]:
    """Return name and driver version of each NVIDIA GPU that the driver sees. PyTorch may see fewer."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.rpartition(",") for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return [(name.strip(), driver.strip()) for name, comma, driver in rows if comma]


def browser() -> str | None:
    """Return the path of a browser, which the pages of data and results are looked at with."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)
