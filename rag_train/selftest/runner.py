"""The processes of the self-test: started one after the other, watched, and ended with all that they started."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NoReturn

import psutil

from rag_train.errors import masked
from rag_train.selftest.process import append, read
from rag_train.selftest.registry import FAIL, NOT_HERE, PARTS, Part, Result

LOG_LINES = 60
"""Lines that are kept of what a part printed, if it fails."""
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux."""


def run(
    parts: Sequence[Part], module: str = PARTS, begins: Callable[[str], None] = lambda name: None
) -> Generator[Result, None, None]:
    """Test ``parts``, which the import of ``module`` registers, and yield each result when it is known.

    ``begins`` is called with the name of the part that is tested next. When the iterator is closed, or a signal
    ends it, no process and no file is left.
    """
    with _ending_by_signals(), _folder() as folder:
        for _, members in groupby(parts, key=lambda part: part.process):
            yield from _process(list(members), module, folder, begins)


def _process(parts: list[Part], module: str, folder: Path, begins: Callable[[str], None]) -> Iterator[Result]:
    """Test parts in a process of their own, and yield their results."""
    log, before = folder / f"{parts[0].process}.log", len(read(folder))
    command = [sys.executable, "-m", "rag_train.selftest.process", module, str(folder)]
    with _own_descendants(), log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *(part.name for part in parts)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(folder),
            start_new_session=True,
        )
        for number, part in enumerate(parts):
            begins(part.name)
            start = time.monotonic()
            while (ended := process.poll() is not None) is False and len(read(folder)) <= before + number:
                if time.monotonic() - start > part.limit:
                    break
                time.sleep(0.05)
            found = read(folder)[before + number :]
            if not found:
                seconds = time.monotonic() - start
                why = _end(process.returncode) if ended else f"not done after {part.limit:.0f} s"
                results = [Result(part.name, FAIL, seconds, why)]
                reason = f"shares a process with {part.name!r}, which ended it"
                results += [Result(other.name, NOT_HERE, 0.0, reason) for other in parts[number + 1 :]]
                for result in results:
                    append(folder, result)
                yield from (_with_log(result, log) for result in results)
                return
            yield _with_log(found[0], log)


def _end(code: int) -> str:
    """Return how a process ended that left no result."""
    if code >= 0:
        return f"its process ended with code {code}"
    return f"its process was ended by {signal.Signals(-code).name}"


def _with_log(result: Result, log: Path) -> Result:
    if result.status != FAIL:
        return result
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return replace(result, log=masked("\n".join(lines[-LOG_LINES:])))


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a temporary directory, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix="rag-train-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of the parts, whose libraries write to ``folder`` only, and ask no hub."""
    places = {
        "TMPDIR": "tmp",
        "RAG_TRAIN_CACHE": "cache",
        "RAG_TRAIN_LOG_DIR": "logs",
        "XDG_CACHE_HOME": "caches",
        "HF_HOME": "huggingface",
        "TORCH_EXTENSIONS_DIR": "extensions",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "VLLM_CACHE_ROOT": "vllm",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
        "CUDA_CACHE_PATH": "cuda",
    }
    environment = dict(os.environ)
    if environment.pop("PYTHONDONTWRITEBYTECODE", None):  # each process would compile its imports again
        places["PYTHONPYCACHEPREFIX"] = "bytecode"
    for name in places.values():
        (folder / name).mkdir(exist_ok=True)
    own = {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "RAG_TRAIN_PATIENCE": "0", "COLUMNS": "200"}
    return environment | {variable: str(folder / name) for variable, name in places.items()} | own


@contextmanager
def _own_descendants() -> Iterator[None]:
    """Kill the processes that were started inside the block, and all that these have started.

    Processes whose parent has ended become children of this one. So none is missed, also in another session or
    group.
    """
    this = psutil.Process()
    before = set(this.children(recursive=True))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        # Trackers remove the shared memory of killed processes, and then end by themselves.
        for spared in ("resource_tracker", ""):
            found = set(this.children(recursive=True)) - before
            for process in found:
                if not spared or spared not in _command(process):
                    _kill(process)
            psutil.wait_procs(found, timeout=3)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


@contextmanager
def _ending_by_signals() -> Iterator[None]:
    """End the block by KeyboardInterrupt also if the terminal closes or the process is asked to end."""

    def end(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
