"""The commands of a newcomer's first hour, run and timed in an empty folder (make first-hour).

From ``rag-train doctor`` to a report and the board, on the mini world with its shipped model. Each command runs in
a terminal of 100 columns. Measured: the seconds to the first line, to the first progress bar, and to the end; for
the board, to its first answer. The folder holds a folder called ``eval`` whose module raises, as a user's could.
Writes first_hour.json, with the text that each command printed.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil

from rag_train.errors import UserError
from rag_train.eval.benchmarks.common import CONTROLLER, benchmark_parser, exit_on_user_error, free_port

COLUMNS = "100"
COMMANDS = (
    "rag-train doctor",
    "rag-train init",
    "rag-train world world",
    "rag-train index world/corpus.jsonl index",
    "rag-train synth planrag recipes/gold.yaml 'questions=[train.jsonl]' 'held_out=[test.jsonl]' index=index "
    "passages=3 instructions=false output=runs/gold.jsonl",
    "rag-train data check runs/gold.jsonl",
    "rag-train train recipes/planrag_sft.yaml model=$MODEL data=runs/gold.jsonl output_dir=runs/planner lora=null "
    "lr=3e-4 epochs=1 max_tokens=1024",
    "rag-train eval --model mini=$MODEL --role planner=runs/planner --strategy planrag --strategy rag "
    "--questions test.jsonl --index index --engine transformers --no-instructions --output runs/eval",
    "rag-train compare runs/eval",
    "rag-train report runs/eval report.html",
    "rag-train board runs --port $PORT",
)
EVERY = {"train": 400, "test": 200}
"""One question in so many is taken from the mini world's files."""
CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
ADDRESS = re.compile(rb"http://127\.0\.0\.1:\d+/\S*(?=\s)")
BAR = "━".encode()

Ended = Literal["end", "error", "first answer", "first line"]
"""How a command ended: by itself, with its error message, or stopped after its first answer or line."""


@dataclass
class Step:
    """A command, its times in seconds, and what it printed."""

    command: str
    seconds: float = 0.0
    first_line: float = 0.0
    processor: float = 0.0
    """Processor time until the first line."""
    first_bar: float | None = None
    """None if the command shows no progress bar."""
    ended: Ended = "end"
    output: str = ""


def main() -> None:
    parser = benchmark_parser(__doc__)
    options = parser.parse_args()

    from rag_train.provenance import save_result

    with exit_on_user_error(), tempfile.TemporaryDirectory() as folder:
        steps = first_hour(Path(folder))
    print_steps(steps)
    save_result(options.output / "first_hour.json", {"steps": [asdict(step) for step in steps]})


def first_hour(folder: Path) -> list[Step]:
    """Run all commands in ``folder``. Raises UserError if a command fails."""
    (folder / "eval").mkdir()
    (folder / "eval/__init__.py").write_text("raise RuntimeError('a folder of the user')\n")
    steps = []
    for command in COMMANDS:
        steps.append(run(command, folder))
        if command.startswith("rag-train world"):
            for name, every in EVERY.items():
                lines = (folder / f"world/{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
                (folder / f"{name}.jsonl").write_text("".join(lines[::every]), encoding="utf-8")
    return steps


def print_steps(steps: list[Step]) -> None:
    for step in steps:
        bar = "-" if step.first_bar is None else f"{step.first_bar:.1f}"
        print(f"{step.first_line:6.1f} {bar:>6} {step.seconds:6.1f} s  {step.command[:70]}")


def run(command: str, folder: Path, *, stop: bool = False, may_fail: bool = False, expected: int = 0) -> Step:
    """Run a command until its end, or until the address that it prints has answered.

    With ``stop`` it is stopped after its first line. Raises UserError if the exit code is not ``expected``; with
    ``may_fail`` only if the command fails with anything but an error message.
    """
    model, path = str(CONTROLLER), f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {"MODEL": model, "PORT": str(free_port()), "PATH": path, "COLUMNS": COLUMNS, "TERM": "xterm"}
    leader, follower = pty.openpty()
    began = time.perf_counter()
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    step, printed = Step(command), b""
    with suppress(OSError), os.fdopen(leader, "rb", buffering=0) as terminal:  # EIO: the process has ended
        while chunk := terminal.read(2**16):
            printed += chunk
            step.seconds = time.perf_counter() - began
            if not step.first_line and CODES.sub(b"", printed).strip():
                step.first_line, step.processor = step.seconds, processor_time(process.pid)
            if not step.first_bar and BAR in printed:
                step.first_bar = step.seconds
            if step.ended == "end" and (address := ADDRESS.search(printed)):
                with suppress(HTTPError):  # also an answer
                    urlopen(address[0].decode()).close()
                step.ended, step.seconds = "first answer", time.perf_counter() - began
                process.send_signal(signal.SIGINT)
            if stop and step.ended == "end" and step.first_line:
                step.ended = "first line"
                process.terminate()
    code = process.wait()
    if step.ended == "end":
        step.seconds = time.perf_counter() - began
        step.ended = "end" if code == expected else "error"
    step.output = shown(printed).replace(str(folder), ".").replace(model, "$MODEL")
    if step.ended == "error" and (code != 2 or not may_fail):
        raise UserError(f"{command}: exit code {code}: {step.output[-1000:]}")
    return step


def processor_time(pid: int) -> float:
    """Return the seconds of processor time of a process and its children; 0 if the process has ended."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return sum(sum(each[:4]) for each in times)  # user and system, also of children that have ended
    return 0.0


def shown(printed: bytes) -> str:
    """Return what a terminal shows in the end: no control codes, and of a line that was rewritten its last text."""
    lines = CODES.sub(b"", printed).decode().replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2].rstrip() for line in lines).strip()


if __name__ == "__main__":
    main()
