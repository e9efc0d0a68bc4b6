"""The memory estimate of training, against measured peaks (make bench NAME=memory).

Ten shapes: wide and deep models, large vocabularies, padded batches, packed rows, pairs and trees, adapters, bf16
and recomputed activations. Each is trained in a new process, after a run on one example that imports the libraries.
The peak above that (resident memory, without swap) is compared with the estimate without its part for libraries.
Linux, on the CPU. Writes memory.json and memory.md.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rag_train.eval.benchmarks.harness import (
    CONTROLLER,
    benchmark_parser,
    in_new_process,
    process_memory,
    save,
)
from rag_train.training.measure import random_model
from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe, TrainRecipe

EXAMPLES = 16
"""Examples of imitation; the peak is reached in the second step."""
HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": True}
WIDE = HEADS | {"hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 4, "vocab_size": 4000}
DEEP = HEADS | {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 24, "vocab_size": 4000}
WORDS = HEADS | {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "vocab_size": 64000}
PACKED = {"sft": SFTRecipe(pack_tokens=2048), "batch_size": 1}
TREE = {"stage": "dpo", "dpo": DPORecipe(layout="tree"), "batch_size": 8}
PAIRS = {"stage": "dpo", "dpo": DPORecipe(layout="pairs"), "batch_size": 4}
RECOMPUTED = {"gradient_checkpointing": True}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "wide, padded": (WIDE, {}),
    "wide, padded, bf16": (WIDE, {"precision": "bf16"}),
    "wide, packed": (WIDE, PACKED),
    "wide, packed, adapters": (WIDE, PACKED | {"lora": LoraRecipe()}),
    "deep, packed": (DEEP, PACKED),
    "deep, packed, recomputed": (DEEP, PACKED | RECOMPUTED),
    "large vocabulary, packed": (WORDS, PACKED),
    "large vocabulary, padded": (WORDS, {}),
    "wide, pairs": (WIDE, PAIRS),
    "wide, trees": (WIDE, TREE),
}
"""Sizes of the model and keys of the recipe, by the name of the shape."""


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()

    from rag_train.eval.benchmarks.training import shaped, trajectories
    from rag_train.jobs.files import write_records
    from rag_train.table import Table

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as name:
        work = Path(name)
        data = {"sft": work / "sft.jsonl", "dpo": shaped(work / "dpo.jsonl", 2)}
        write_records(data["sft"], trajectories(EXAMPLES))
        for number, (shape, (sizes, keys)) in enumerate(SHAPES.items()):
            folder = work / str(number)
            model = random_model(folder / "model", sizes, CONTROLLER)
            rows.append({"shape": shape} | compared(model, keys, data, folder))
    table = Table(
        title="Memory of a training",
        caption="The estimate of --dry-run and the measured peak, in MiB, above a run on one example.",
        columns=["Shape", "Estimate", "Measured", "Estimate over measured"],
        rows=[
            [
                row["shape"],
                f"{row['estimate'] / 2**20:,.0f}",
                f"{row['measured'] / 2**20:,.0f}",
                f"{row['estimate'] / row['measured'] - 1:+.0%}",
            ]
            for row in rows
        ],
    )
    save(options.output, "memory", {"rows": rows}, table)


def compared(model: Path, keys: Mapping[str, Any], data: Mapping[str, Path], folder: Path) -> dict[str, float]:
    """Return the estimate and the measured peak of a training of ``model``, in bytes."""
    from accelerate.utils import patch_environment

    from rag_train.training.load import load_data
    from rag_train.training.memory import RUNTIME
    from rag_train.training.plan import plan

    stage = keys.get("stage", "sft")
    defaults: dict[str, Any] = {"stage": stage, "precision": "fp32", "batch_size": 4, "lr": 1e-4, "epochs": 1}
    paths: dict[str, Any] = {"model": str(model), "data": data[stage], "output_dir": str(folder / "large")}
    large = TrainRecipe(**(defaults | paths | dict(keys)))
    first = folder / "first.jsonl"
    first.write_text(data[stage].read_text(encoding="utf-8").partition("\n")[0] + "\n", encoding="utf-8")
    small = replace(large, data=first, output_dir=str(folder / "small"))
    _, rows, report = load_data(large)
    estimate = plan(large, rows, report).memory.total - RUNTIME
    # Freed memory returns to the system.
    with patch_environment(OMP_NUM_THREADS="1", MALLOC_MMAP_THRESHOLD_="65536"):
        return {"estimate": estimate, "measured": in_new_process(peak_above, small, large)}


def peak_above(small: TrainRecipe, large: TrainRecipe) -> int:
    """Return the peak memory of the training ``large`` above the memory after the training ``small``."""
    from rag_train.training.run import train

    train(small)  # imports all libraries
    gc.collect()  # trainers are in reference cycles
    before = process_memory("VmRSS")
    train(large)
    return process_memory("VmHWM") - before


if __name__ == "__main__":
    main()
