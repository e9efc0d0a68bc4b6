"""Processes that vLLM starts, tied to the process that started them: they die with it, however it dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

ENGINE = ("vllm.v1.engine.core", "EngineCoreProc", "run_engine_core")
WORKER = ("vllm.v1.executor.multiproc_executor", "WorkerProc", "worker_main")
"""Entry points of vLLM's processes: module, class, static method. The engine's process starts the workers'."""

_PR_SET_PDEATHSIG = 1
_usual: dict[tuple[str, str, str], Callable[..., None]] = {}
"""vLLM's own entry points, where `tie` has replaced them."""


def tie(entry: tuple[str, str, str] = ENGINE) -> None:
    """Replace an entry point, so that its processes die with the thread that starts them."""
    module, owner, name = entry
    if entry not in _usual:
        cls = getattr(import_module(module), owner)
        _usual[entry] = getattr(cls, name)
        setattr(cls, name, staticmethod(partial(run_tied, entry, os.getpid())))


def run_tied(entry: tuple[str, str, str], parent: int, *args: Any, **kwargs: Any) -> None:
    """Run a process from its entry point, after asking the kernel to kill it when its parent dies."""
    die_with(parent)
    module, owner, name = entry
    # A forked process inherits the replacement; in a spawned one the entry point is vLLM's own.
    usual = _usual.pop(entry, None) or getattr(getattr(import_module(module), owner), name)
    if entry == ENGINE:
        tie(WORKER)
    usual(*args, **kwargs)


@contextmanager
def without_main() -> Iterator[None]:
    """Within the block, spawned processes do not import the program's main module again.

    vLLM's processes need nothing of it. A script would otherwise need the guard ``if __name__ == "__main__"``, and
    on CPUs vLLM 0.32 fails in a worker that has loaded llvmlite, as numba does, with which BM25 searches.
    """
    main = vars(sys.modules["__main__"])
    hidden = {name: main.pop(name) for name in ("__file__", "__spec__") if name in main}
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(hidden)


def die_with(parent: int) -> None:
    """Have this process killed when its parent dies (Linux), or end it now if that has already happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
