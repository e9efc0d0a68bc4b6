"""The examination: one finding after the other, the quick ones first, none of which can fail."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rag_train.doctor import machine
from rag_train.doctor.packages import (
    PARTS,
    TORCH,
    Package,
    Part,
    Seen,
    accelerators,
    clashes,
    faiss_gpus,
    import_problem,
    installed,
)
from rag_train.errors import install_command
from rag_train.network import begin_reaching_hub, hub_address
from rag_train.table import gib

LEAST_DISK = 50 * 2**30
"""Free bytes below which a first model with its checkpoints does not fit."""
JOBS = {
    "train": {"torch", "transformers", "trl", "peft", "accelerate", "datasets"},
    "serve": {"torch", "transformers", "vllm"},
    "dense": {"torch", "transformers", "sentence-transformers", "faiss"},
}
"""What a job needs, by name: training; answering and synthesis with vLLM; dense indexes."""
USES = {"serve": "serving", "lora": "training adapters (LoRA)", "train": "training all parameters"}


@dataclass(frozen=True)
class Finding:
    """A part of the examination: ``value`` as in ``--json``, ``text`` as it is printed.

    ``remedies`` are what to do about it, such as commands; empty if nothing is wrong.
    """

    name: str
    value: Any
    text: str
    remedies: tuple[str, ...] = ()


def examine(job: str | None = None) -> Iterator[Finding]:
    """Yield what is here, what that is enough for, and the commands that install what is missing.

    With a ``job`` (see `JOBS`), the last finding, ``job``, says whether it can run; its value is the list of
    reasons why not.
    """
    yield _attempt("rag-train", _software)
    reached = begin_reaching_hub()
    yield from _hardware()
    yield _attempt("network", lambda: _network(hub_address(), reached()))
    yield _attempt("caches", _caches)
    torch = installed(TORCH)
    seen = accelerators() if torch.works else Seen([])
    packages = [replace(torch, problem=torch.problem or seen.problem)]
    yield _package(packages[0])
    wrong = [_attempt("driver", lambda: _driver(seen)), _attempt("clashes", _clashes)]
    yield _accelerators(seen)
    yield from wrong
    for part in PARTS:
        packages.append(_examined(part, bool(seen.devices)))
        yield _package(packages[-1])
    if all(package.works for package in packages if not package.extra):
        yield _attempt("enough_for", lambda: _enough(seen.devices))
    yield _install(packages, bool(seen.devices), [remedy for finding in wrong for remedy in finding.remedies])
    if job:
        yield _job(job, packages, wrong, bool(seen.devices))


def _examined(part: Part, gpus: bool) -> Package:
    found = installed(part)
    if not found.works or not part.module:
        return found
    problem = import_problem(part.imports.get(found.name, part.module))
    if part.module == "faiss" and gpus and not problem:
        place, searched = faiss_gpus()
        if not searched:
            problem = f"{place} searches on the CPU: it is the build for CPUs, or sees no GPU"
    return replace(found, problem=problem)


def _attempt(name: str, look: Callable[[], Finding]) -> Finding:
    """Return what ``look`` finds, or the finding that it failed: an examination does not end halfway."""
    try:
        return look()
    except Exception as error:
        told = f"{type(error).__name__}: {error}".partition("\n")[0]
        return Finding(name, {"problem": told}, f"cannot be told ({told})")


def _software() -> Finding:
    value: dict[str, Any] = {"rag_train": metadata.version("rag-train"), "python": platform.python_version()}
    value |= {"system": platform.system(), "machine": platform.machine()}
    value["bytecode"] = not sys.dont_write_bytecode
    text = f"{value['rag_train']}, Python {value['python']}, {value['system']} {value['machine']}"
    if sys.dont_write_bytecode:
        text += "; PYTHONDONTWRITEBYTECODE is set: unset it, or each start of vLLM compiles its imports again"
    return Finding("rag-train", value, text)


def _hardware() -> Iterator[Finding]:
    yield _attempt("processor", _processor)
    yield _attempt("memory", lambda: _space("memory", machine.memory(), ""))
    yield _attempt("disk", _disk)
    path = machine.browser()
    yield Finding("browser", path, path or "none; pages of data and results need one, on this machine or another")


def _processor() -> Finding:
    found = machine.processor()
    cores = f"{found.cores} core{'s' * (found.cores > 1)}"
    return Finding("processor", asdict(found), ", ".join([found.name, cores, *found.instructions]))


def _space(name: str, found: machine.Space, where: str) -> Finding:
    return Finding(name, asdict(found), f"{gib(found.total)}, {gib(found.free)} free{where}")


def _disk() -> Finding:
    disk = machine.disk()
    found = _space("disk", disk, " here")
    if disk.free >= LEAST_DISK:
        return found
    remedy = f"free {gib(LEAST_DISK)} on this disk, or work in a folder on a larger one"
    return replace(found, text=f"{found.text}: too little for a model and its checkpoints; {remedy}")


def _network(hub: str, problem: str | None) -> Finding:
    text = f"{hub} answers" if problem is None else f"{hub} does not answer ({problem}); use local files"
    return Finding("network", {"hub": hub, "problem": problem}, text)


def _caches() -> Finding:
    from huggingface_hub.constants import HF_HUB_CACHE

    place = Path(HF_HUB_CACHE)
    kept = [path.name for path in place.iterdir()] if place.is_dir() else []
    counts = {kind: sum(name.startswith(f"{kind}--") for name in kept) for kind in ("models", "datasets")}
    text = f"{place}: {counts['models']} models, {counts['datasets']} data sets"
    return Finding("caches", {"hub": str(place)} | counts, text)


def _accelerators(seen: Seen) -> Finding:
    lines = [f"{device.name}, {gib(device.memory)}{', bf16' * device.bf16}" for device in seen.devices]
    if len(lines) > 1 and seen.cuda:
        lines.append("NCCL" if seen.nccl else "no NCCL: one process cannot exchange data with others")
    return Finding("accelerators", [asdict(device) for device in seen.devices], "; ".join(lines) or "none")


def _driver(seen: Seen) -> Finding:
    """Say whether the NVIDIA driver and PyTorch fit each other."""
    gpus = machine.nvidia()
    value = {"driver": gpus[0][1] if gpus else None, "gpus": len(gpus), "torch_cuda": seen.cuda}
    if not gpus:
        return Finding("driver", value, seen.warning or "no NVIDIA GPU")
    text = f"NVIDIA {gpus[0][1]}, {len(gpus)} GPU{'s' * (len(gpus) > 1)} ({gpus[0][0]})"
    if seen.cuda is None:
        remedy = f"{install_command('gpu')} --force-reinstall"
        return Finding("driver", value, f"{text}, but PyTorch is a build without CUDA; {remedy}", (remedy,))
    least = machine.LEAST_DRIVER.get(seen.cuda.partition(".")[0], 0)
    if int(gpus[0][1].partition(".")[0]) < least:
        remedy = f"update the NVIDIA driver to {least} or newer"
        told = f"{text}, older than {least}, which PyTorch for CUDA {seen.cuda} needs; {remedy}"
        return Finding("driver", value, told, (remedy,))
    if len(seen.devices) < len(gpus):
        remedy = "look at CUDA_VISIBLE_DEVICES and the permissions of /dev/nvidia*"
        told = f"{text}, of which PyTorch sees {len(seen.devices)} ({seen.warning or 'no reason given'}); {remedy}"
        return Finding("driver", value, told, () if seen.devices else (remedy,))
    return Finding("driver", value, f"{text}, new enough for CUDA {seen.cuda}")


def _clashes() -> Finding:
    """Name the packages that overwrite each other's modules, and how to be left with one owner of each module."""
    found, lines, remedies = clashes(), [], []
    for clash in found:
        pair = (clash.first, clash.second)
        # Of two builds, such as faiss-cpu and faiss-gpu, one is enough; others need each other, in newer versions.
        if gone := next((name for name in pair if name.endswith("-cpu")), None):
            kept = next(name for name in pair if name != gone)
            remedies.append(f"pip uninstall -y {gone} && pip install --force-reinstall --no-deps {kept}")
        else:
            remedies.append(f"pip uninstall -y {' '.join(pair)} && pip install {' '.join(pair)}")
        lines.append(f"{clash.first} and {clash.second} both own {clash.files[0]} ({len(clash.files)} files)")
    text = "; ".join(lines) or "no two packages own one module"
    return Finding("clashes", [asdict(clash) for clash in found], "\n".join([text, *remedies]), tuple(remedies))


def _package(package: Package) -> Finding:
    if package.version is None:
        text = f"not installed ({package.purpose})"
    elif package.problem:
        text = f"{package.version}, broken: {package.problem}"
    else:
        text = f"{package.version} ({package.purpose})"
    return Finding(package.name, asdict(package), text)


def _enough(devices: list[machine.Accelerator]) -> Finding:
    """Say what the accelerators are enough for or, without any, the main memory."""
    from rag_train.doctor.capacity import largest

    sizes = [device.memory for device in devices if device.memory]
    found = largest(min(sizes), len(sizes)) if sizes else largest(machine.memory().total, 1)
    parts = [f"{use} {found[key] or 'no preset'}" for key, use in USES.items()]
    slow = "" if sizes else " (by the memory; slow without an accelerator)"
    return Finding("enough_for", found, "; ".join(parts) + slow)


def _install(packages: list[Package], gpu: bool, remedies: Sequence[str] = ()) -> Finding:
    """Name the commands that install missing extras and install broken packages again."""
    engine = "gpu" if gpu else "cpu"
    wanted = {"": "", "engine": engine, "retrieval": "retrieval", "eval": "eval"} | ({"gpu": engine} if gpu else {})
    missing = dict.fromkeys(wanted[p.extra] for p in packages if p.version is None and p.extra in wanted)
    commands = [install_command(extra) for extra in missing]
    commands += [f"pip install --force-reinstall {p.name}" for p in packages if p.problem]
    commands += remedies
    return Finding("install", commands, "\n".join(commands) or "nothing is missing")


def _job(job: str, packages: list[Package], wrong: Sequence[Finding], gpus: bool) -> Finding:
    """Say whether a job can run, or the reasons why not."""
    needed = [package for package in packages if JOBS[job].intersection((package.name, package.name.split("-")[0]))]
    reasons = [f"{p.name}: {p.problem or 'not installed'}" for p in needed if not p.works]
    reasons += [finding.text.partition("\n")[0] for finding in wrong if finding.remedies]
    if not gpus and any(package.name == "vllm" and package.works for package in needed):
        remedy = f"for CPUs, {install_command('cpu')} in another environment"
        reasons.append(f"vllm: this is the build for GPUs, and PyTorch sees none; {remedy}")
    text = f"{job} cannot run: {'; '.join(reasons)}" if reasons else f"{job} can run"
    return Finding("job", reasons, text)
