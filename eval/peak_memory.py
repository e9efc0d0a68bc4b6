"""Peak memory of a run: this process and its children (engines, trainers), sampled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


@dataclass
class Peak:
    """Most memory seen so far, in GiB. Memory that processes share is counted once on Linux, else for each."""

    gib: float = 0.0


@contextmanager
def peak_memory(seconds: float = 1.0) -> Iterator[Peak]:
    """Measure the memory of this process and all of its children until the block ends.

    Between two measurements are ``seconds``, and at least 50 times as long as a measurement takes: of large
    processes, the kernel counts shared memory page by page.
    """
    peak = Peak()
    stop = threading.Event()

    def watch() -> None:
        this = psutil.Process()
        while True:
            start = time.perf_counter()
            peak.gib = max(peak.gib, sum(map(_gib, (this, *this.children(recursive=True)))))
            if stop.wait(max(seconds, 50 * (time.perf_counter() - start))):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def _gib(process: psutil.Process) -> float:
    """Memory of ``process``; 0 if it has ended."""
    try:
        found = process.memory_full_info()
    except psutil.Error:
        return 0.0
    return getattr(found, "pss", found.rss) / 2**30
