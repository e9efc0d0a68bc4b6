"""Results that seeds of different days and machines share."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rag_train.errors import UserError
from rag_train.eval.by_seed import run_by_seed
from rag_train.eval.peak_memory import peak_memory


def test_seeds_are_written_one_by_one_and_kept(tmp_path: Path):
    path, settings = tmp_path / "new" / "r.json", {"prices": (0.1, 0.2)}

    def fails_at_12(seed: int) -> dict:
        if seed == 12:
            raise RuntimeError("killed")
        return {"em": seed / 100}

    with pytest.raises(RuntimeError):
        run_by_seed(path, settings, [11, 10, 12], fails_at_12)
    assert list(json.loads(path.read_text())["seeds"]) == ["10", "11"]
    results = run_by_seed(path, settings, [12], lambda seed: {"em": 0.5})
    assert {seed: result["em"] for seed, result in results.items()} == {10: 0.1, 11: 0.11, 12: 0.5}
    assert run_by_seed(path, settings, [12], lambda seed: pytest.fail("ran again")) == results
    assert results[12].keys() == {"machine", "code_version", "seconds", "peak_gib", "em"}
    with pytest.raises(UserError, match=r"other settings \(prices, new\)"):
        run_by_seed(path, {"prices": [0.1], "new": 1}, [12], lambda seed: {})


def test_peak_memory_counts_this_process_and_its_children() -> None:
    child = "x = bytearray(150 << 20); input()"
    with peak_memory(seconds=0.05) as alone:
        pass
    with (
        peak_memory(seconds=0.05) as with_child,
        subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE) as process,
    ):
        deadline = time.monotonic() + 60
        while with_child.gib < alone.gib + 0.14 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.communicate(b"\n")
    assert alone.gib + 0.14 < with_child.gib < alone.gib + 0.5
