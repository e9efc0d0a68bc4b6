"""The file with the results of a self-test, to attach to an issue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rag_train.doctor.machine import nvidia
from rag_train.doctor.packages import PARTS, TORCH, accelerators, installed
from rag_train.provenance import save_result
from rag_train.selftest.registry import Result


def write(path: Path, results: Sequence[Result], short: bool, seconds: float) -> None:
    """Write the results as JSON, with the machine, its devices, and the versions of the packages."""
    found = map(installed, (TORCH, *PARTS))
    content = {
        "devices": asdict(accelerators()),
        "driver": [driver for _, driver in nvidia()],
        "packages": {package.name: package.version for package in found if package.version},
        "short": short,
        "seconds": seconds,
        "parts": [asdict(result) for result in results],
    }
    save_result(path, content)
