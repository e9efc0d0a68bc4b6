"""The examination: one finding after the other, the quick ones first, none of which can fail."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from rag_train.doctor import machine
from rag_train.doctor.packages import PARTS, TORCH, Package, Part, accelerators, import_problem, installed
from rag_train.errors import install_command
from rag_train.network import begin_reaching_hub, hub_address
from rag_train.table import gib

USES = {"serve": "serving", "lora": "training adapters (LoRA)", "train": "training all parameters"}


@dataclass(frozen=True)
class Finding:
    """A part of the examination: ``value`` as in ``--json``, ``text`` as it is printed."""

    name: str
    value: Any
    text: str


def examine() -> Iterator[Finding]:
    """Yield what is here, what that is enough for, and the commands that install what is missing."""
    yield _attempt("rag-train", _software)
    reached = begin_reaching_hub()
    yield from _hardware()
    yield _attempt("network", lambda: _network(hub_address(), reached()))
    yield _attempt("caches", _caches)
    torch = installed(TORCH)
    devices, problem = accelerators() if torch.works else ([], None)
    packages = [replace(torch, problem=torch.problem or problem)]
    yield _package(packages[0])
    yield _accelerators(devices)
    for part in PARTS:
        packages.append(_examined(part))
        yield _package(packages[-1])
    if all(package.works for package in packages if not package.extra):
        yield _attempt("enough_for", lambda: _enough(devices))
    yield _install(packages, bool(devices))


def _examined(part: Part) -> Package:
    found = installed(part)
    if not found.works or not part.module:
        return found
    return replace(found, problem=import_problem(part.module))


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
    yield _attempt("disk", lambda: _space("disk", machine.disk(), " here"))
    path = machine.browser()
    yield Finding("browser", path, path or "none; pages of data and results need one, on this machine or another")


def _processor() -> Finding:
    found = machine.processor()
    cores = f"{found.cores} core{'s' * (found.cores > 1)}"
    return Finding("processor", asdict(found), ", ".join([found.name, cores, *found.instructions]))


def _space(name: str, found: machine.Space, where: str) -> Finding:
    return Finding(name, asdict(found), f"{gib(found.total)}, {gib(found.free)} free{where}")


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


def _accelerators(devices: list[machine.Accelerator]) -> Finding:
    lines = [f"{device.name}, {gib(device.memory)}{', bf16' * device.bf16}" for device in devices]
    return Finding("accelerators", [asdict(device) for device in devices], "; ".join(lines) or "none")


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


def _install(packages: list[Package], gpu: bool) -> Finding:
    """Name the commands that install missing extras and install broken packages again."""
    engine = "gpu" if gpu else "cpu"
    wanted = {"": "", "engine": engine, "retrieval": "retrieval", "eval": "eval"} | ({"gpu": engine} if gpu else {})
    missing = dict.fromkeys(wanted[p.extra] for p in packages if p.version is None and p.extra in wanted)
    commands = [install_command(extra) for extra in missing]
    commands += [f"pip install --force-reinstall {p.name}" for p in packages if p.problem]
    return Finding("install", commands, "\n".join(commands) or "nothing is missing")
