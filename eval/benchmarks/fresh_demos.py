"""The demo in fresh clones: its time and memory, and how much its figures differ from run to run.

Each run clones into an empty directory, installs everything and runs the demo, as a newcomer does. With --atlas, it
is the demo on a real model, on dev questions. Adds each run to fresh_demos.json.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from rag_train.eval.benchmarks.common import benchmark_parser
from rag_train.eval.benchmarks.fresh_clones import fresh_clone, make
from rag_train.eval.pages.results import load_results
from rag_train.progress import console
from rag_train.provenance import machine, save_result

FILE = "fresh_demos.json"
ATLAS = ("--atlas", "split=dev")


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--runs", type=int, default=1, help="number of clones")
    parser.add_argument("--atlas", action="store_true", help="run the demo on a real model and real facts")
    parser.add_argument("--commit", default="HEAD", help="commit to run")
    options = parser.parse_args()
    file = options.output / FILE
    for _ in range(options.runs):
        found = run(options.commit, ATLAS if options.atlas else ())
        before = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.exists() else []
        save_result(file, {"runs": [*before, found]})
        console.print(json.dumps(found))


def run(commit: str, arguments: tuple[str, ...] = ()) -> dict[str, Any]:
    """Clone, install, run the demo with ``arguments``, and return what it took and what it found."""
    with fresh_clone(commit) as clone:
        start = time.perf_counter()
        make(clone, ".venv/.ready").check_returncode()
        installed = time.perf_counter()
        subprocess.run([clone / ".venv/bin/rag-train", "demo", *arguments], cwd=clone, check=True)
        ended = time.perf_counter()
        return result(clone, arguments, installed - start, ended - installed)


def result(clone: Path, arguments: tuple[str, ...], install_seconds: float, seconds: float) -> dict[str, Any]:
    """Return the figures of the demo that ran in ``clone``, with its time and memory."""
    folder = clone / "runs" / ("demo-atlas" if "--atlas" in arguments else "demo")
    demo = load_results(folder / "demo.json")
    return {
        "command": " ".join(["rag-train demo", *arguments]),
        "code_version": demo.provenance.code_version,
        "machine": machine(),
        "install_seconds": install_seconds,
        "seconds": seconds,
        "peak_gib": demo.peak_gib,
        "timings": {timing.part: timing.seconds for timing in demo.timings},
        "figures": {
            run.name: {
                "em": run.em.mean,
                "retrievals": run.retrievals.mean,
                "mcc": run.fact_boundary.mcc if run.fact_boundary else None,
            }
            for run in demo.runs
        },
    }


if __name__ == "__main__":
    main()
