"""Processes that die with the process that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

PROGRAM = """
import multiprocessing, signal, sys
from rag_train.llm.processes import tie

class Engine:
    @staticmethod
    def run():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        signal.pause()

if __name__ == "__main__":
    import program
    tie(("program", "Engine", "run"))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if the tests run under nohup
    multiprocessing.get_context(sys.argv[1]).Process(target=program.Engine.run).start()
    signal.pause()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can kill the processes of a dead parent")
@pytest.mark.parametrize(
    ("method", "sent"), [("fork", signal.SIGTERM), ("fork", signal.SIGKILL), ("spawn", signal.SIGHUP)]
)
def test_a_tied_process_dies_with_its_parent(method: str, sent: signal.Signals, tmp_path: Path):
    """Standard output ends only when no process has it open any more."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, tmp_path / "program.py", method]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout and parent.stdout.readline() == b"ready\n"
        parent.send_signal(sent)
        assert parent.communicate(timeout=60)[0] == b""


UNGUARDED = """
import multiprocessing
from rag_train.llm.processes import without_main

print("main", flush=True)
with without_main():
    process = multiprocessing.get_context("spawn").Process(target=print, args=("child",))
    process.start()
process.join()
print(__file__)
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["main", "child", str(script)], done.stderr


VLLM = """
import asyncio, signal, sys
import psutil
import numba  # with its library loaded, vLLM 0.32 does not start on CPUs
from rag_train.llm.vllm import VLLMEngine

async def go():
    engine = VLLMEngine.start(sys.argv[1], dtype="float32", kv_cache_memory_bytes=2**28)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    signal.pause()

asyncio.run(go())
"""


@pytest.mark.release
@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can kill the processes of a dead parent")
def test_vllm_leaves_no_process(mini_model: Path, tmp_path: Path):
    (tmp_path / "program.py").write_text(VLLM)
    command = [sys.executable, tmp_path / "program.py", mini_model]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout
        started = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(started) >= 2, "the engine's process and its worker's"
        parent.kill()
    for process in started:  # readable once the process has ended
        assert select.select([process], [], [], 60)[0]
        os.close(process)
