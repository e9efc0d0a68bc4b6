"""`make test` in fresh clones, some of them with all cores kept busy by something else.

Each run installs everything into an empty directory, as a newcomer does. The busy runs come last; meanwhile as
many processes as there are cores compute in an endless loop. The last run also counts the lines of code that the
tests' processes execute. Writes fresh_clones.json after each run; runs of the same commit in that file are kept,
and counted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rag_train.eval.benchmarks.common import benchmark_parser
from rag_train.progress import console
from rag_train.provenance import cores, save_result

REPORT = "coverage.json"
COVERAGE = ("--cov=rag_train", "--cov=data_synth", "--cov=eval", "--cov-report=", f"--cov-report=json:{REPORT}")
SUMMARY = re.compile(r"(\d+) (passed|failed|skipped|error)")


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="number of clones")
    parser.add_argument("--busy", type=int, default=2, help="number of clones tested with all cores busy")
    parser.add_argument("--commit", default="HEAD", help="commit to test")
    options = parser.parse_args()
    file = options.output / "fresh_clones.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    head = subprocess.run(
        ["git", "rev-parse", "--short", options.commit], capture_output=True, text=True, check=True
    )
    commit = head.stdout.strip()
    runs = before["runs"] if before.get("commit") == commit else []
    for number in range(len(runs), options.runs):
        last = number == options.runs - 1
        runs.append(run(commit, busy=number >= options.runs - options.busy, coverage=last))
        console.print(json.dumps(runs[-1]))
        save_result(file, {"commit": commit, "runs": runs})


def run(commit: str, busy: bool, coverage: bool = False) -> dict[str, Any]:
    """Clone, install and test, and return the seconds of it and the numbers of tests by outcome.

    With ``coverage``, the result also has the number of ``lines`` of code and the number of ``covered`` ones.
    """
    with fresh_clone(commit) as clone, loops(cores() if busy else 0):
        start = time.perf_counter()
        make(clone, ".venv/.ready").check_returncode()
        installed = time.perf_counter() - start
        if coverage:
            subprocess.run([".venv/bin/python", "-m", "pip", "install", "-q", "pytest-cov"], check=True, cwd=clone)
        tested = make(clone, "test", **({"PYTEST_ADDOPTS": " ".join(COVERAGE)} if coverage else {}))
        seconds = time.perf_counter() - start
        lines = _lines(clone) if coverage else {}
    [*_, last] = tested.stdout.strip().splitlines()
    counts = {outcome: int(count) for count, outcome in SUMMARY.findall(last)}
    if tested.returncode:
        console.print(tested.stdout[-5000:] + tested.stderr[-2000:], markup=False)
    result = {"busy": busy, "green": tested.returncode == 0, "seconds": seconds, "install_seconds": installed}
    return result | counts | lines


@contextmanager
def fresh_clone(commit: str) -> Iterator[Path]:
    """Clone the repository at ``commit`` into an empty directory, which is deleted at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="fresh-clone-") as name:
        clone = Path(name) / "clone"
        subprocess.run(["git", "clone", "--quiet", Path.cwd(), clone], check=True)
        subprocess.run(["git", "checkout", "--quiet", commit], cwd=clone, check=True)
        yield clone


def make(clone: Path, target: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Make a target in a clone. ``variables`` are set in its environment."""
    # A make that runs this benchmark must not pass its options on.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", target], cwd=clone, env=env | variables, capture_output=True, text=True)


def _lines(clone: Path) -> dict[str, int]:
    """Return the number of lines of code and how many were executed; nothing if the tests wrote no report."""
    try:
        totals = json.loads((clone / REPORT).read_text(encoding="utf-8"))["totals"]
    except FileNotFoundError:
        return {}
    return {"lines": totals["num_statements"], "covered": totals["covered_lines"]}


@contextmanager
def loops(count: int) -> Iterator[None]:
    """Keep ``count`` cores busy."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command, env=os.environ) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
