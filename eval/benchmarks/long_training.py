"""Memory of a long training on the CPU: 5,000 packed rows (make bench-memory).

The mini model is trained on trajectories, as `rag-train train` does it, one packed row a step. After each tenth of
the steps, the process's own pages are read (RssAnon; Linux). Writes bench_long.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rag_train.eval.benchmarks.common import benchmark_parser, mini_world, process_memory

ROWS = 5000
EXAMPLES = 12500
"""Trajectories, which make a few more rows than are needed."""
PACK = 512
"""Tokens of a packed row."""
PASSAGES = 4
"""Passages of a search, so that a trajectory fits a row."""


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()

    from rag_train.eval.benchmarks.scale import trajectories
    from rag_train.files import write_records
    from rag_train.progress import console
    from rag_train.provenance import save_result
    from rag_train.recipe import save_recipe
    from rag_train.training.recipe import SFTRecipe, TrainRecipe
    from rag_train.training.result import METRICS
    from rag_train.training.run import load_data
    from rag_train.training.sft import packed_rows

    with tempfile.TemporaryDirectory(prefix="bench-long-") as name:
        work = Path(name)
        write_records(work / "sft.jsonl", trajectories(EXAMPLES, PASSAGES))
        recipe = TrainRecipe(
            stage="sft",
            model=str(mini_world().model),
            data=work / "sft.jsonl",
            output_dir=str(work / "out"),
            lr=1e-4,
            epochs=1,
            sft=SFTRecipe(pack_tokens=PACK),
            logging_steps=ROWS // 10,
            save_steps=10**6,
        )
        _, rows, _ = load_data(recipe)
        count = len(packed_rows(rows, PACK, recipe.seed))
        assert count >= ROWS, f"{EXAMPLES} trajectories make {count} rows; raise EXAMPLES"
        save_recipe(recipe, work / "recipe.yaml")
        command = [sys.executable, "-m", "rag_train.train", str(work / "recipe.yaml")]
        started = time.perf_counter()
        points = watched(command, work / "out" / METRICS, count // recipe.logging_steps)
        seconds = time.perf_counter() - started
    for point in points:
        console.print(f"row {point['row']:,}: {point['bytes'] / 2**20:,.0f} MiB")
    save_result(options.output / "bench_long.json", {"rows": count, "seconds": seconds, "points": points})


def watched(command: list[str], metrics: Path, lines: int) -> list[dict[str, int]]:
    """Run a training to its end; return its process's memory after each of the first ``lines`` logged steps."""
    points: list[dict[str, int]] = []
    with subprocess.Popen(command) as training:
        while training.poll() is None:
            time.sleep(0.05)
            logged = metrics.read_text().splitlines() if metrics.exists() else []
            if len(points) < min(len(logged), lines):
                row = json.loads(logged[len(points)])["step"]
                points.append({"row": row, "bytes": process_memory("RssAnon", training.pid)})
    assert training.returncode == 0 and len(points) == lines
    return points


if __name__ == "__main__":
    main()
