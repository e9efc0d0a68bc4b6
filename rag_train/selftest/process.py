"""What runs in a process of the self-test: some parts, one after the other, whose results go to a file.

python -m rag_train.selftest.process MODULE FOLDER PART...
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from rag_train.errors import masked
from rag_train.llm.processes import die_with
from rag_train.selftest.registry import FAIL, NOT_HERE, PASS, NotHere, Part, Result, blocked, load
from rag_train.selftest.work import Work

RESULTS = "results.jsonl"
"""File in the folder of the self-test to which each process appends its results."""


def main(module: str, folder: str, *names: str) -> None:
    die_with(os.getppid())
    parts, work = load(module), Work(Path(folder))
    for name in names:
        result = _test(parts[name], work)
        append(Path(folder), result)


def append(folder: Path, result: Result) -> None:
    """Add a result to the file."""
    with (folder / RESULTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def read(folder: Path) -> list[Result]:
    """Return the results so far; a line that is being written is left out."""
    if not (folder / RESULTS).exists():
        return []
    lines = (folder / RESULTS).read_text(encoding="utf-8").splitlines(keepends=True)
    return [Result(**json.loads(line)) for line in lines if line.endswith("\n")]


def _test(part: Part, work: Work) -> Result:
    start = time.perf_counter()
    if reason := blocked(part, read(work.folder)):
        return Result(part.name, NOT_HERE, 0.0, reason)
    try:
        status, detail = PASS, part.test(work)
    except NotHere as reason:
        status, detail = NOT_HERE, str(reason)
    except (Exception, SystemExit) as error:
        if not isinstance(error, subprocess.SubprocessError | AssertionError):
            traceback.print_exc()
        status, detail = FAIL, masked(f"{type(error).__name__}: {error}").partition("\n")[0]
    return Result(part.name, status, time.perf_counter() - start, detail)


if __name__ == "__main__":
    main(*sys.argv[1:])
