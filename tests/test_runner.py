"""Runs that are killed: the file ends as if they had not been."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rag_train.errors import UserError
from rag_train.runner import Outcome, run
from rag_train.schema import Question

PROGRAM = """
import asyncio, random, sys
from pathlib import Path
from rag_train.runner import Outcome, run
from rag_train.schema import Question
items = [Question(id=str(i), question=f"q{i}", answers=["a"]) for i in range(60)]
async def work(item):
    await asyncio.sleep(random.random() * 0.1)
    return Outcome([item] * (int(item.id) % 3), {"calls": 1})
asyncio.run(run(items, work, Path(sys.argv[1]), {"seed": 1}, label="t", in_flight=4))
"""


def test_killed_at_any_moment_and_run_again(tmp_path: Path):
    whole, broken = tmp_path / "whole.jsonl", tmp_path / "broken.jsonl"
    subprocess.run([sys.executable, "-c", PROGRAM, str(whole)], check=True, capture_output=True)
    for wanted in (1, 700, 2500):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(broken)], stderr=subprocess.DEVNULL)
        partial = Path(f"{broken}.partial")
        while process.poll() is None and not (partial.exists() and partial.stat().st_size > wanted):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with partial.open("ab") as file:
        file.write(b'{"item": 3, "rec')  # a line cut short
    subprocess.run([sys.executable, "-c", PROGRAM, str(broken)], check=True, capture_output=True)
    assert broken.read_bytes() == whole.read_bytes()
    meta = Path(f"{broken}.meta.json").read_text()
    assert meta == Path(f"{whole}.meta.json").read_text() and '"calls": 60' in meta
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broken.jsonl", "broken.jsonl.meta.json", "whole.jsonl", "whole.jsonl.meta.json"
    ]  # fmt: skip


def test_other_settings_overwrite_nothing(tmp_path: Path):
    items = [Question(id="1", question="q", answers=["a"])]

    async def work(item: Question) -> Outcome:
        return Outcome([item], {})

    output = tmp_path / "out.jsonl"
    asyncio.run(run(items, work, output, {"k": 3}, label="t"))
    before = output.read_bytes()
    assert asyncio.run(run(items, work, output, {"k": 3}, label="t")).items_done == 0
    with pytest.raises(UserError, match="came of another recipe; delete it or choose another output"):
        asyncio.run(run(items, work, output, {"k": 5}, label="t"))
    assert output.read_bytes() == before
