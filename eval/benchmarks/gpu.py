"""Trainings of 7B and 1.5B models on a GPU, against the plans of --dry-run (make bench NAME=gpu).

Models of the shapes of Qwen2.5-7B and 1.5B, with random weights, are trained in both stages: with adapters, 4-bit
weights or all parameters, on trees or pairs, and with each choice of attention. Each training has a process of its
own and runs for two epochs; the second is measured, when all kernels are compiled. Peak memory and time are
compared with the plan's estimates, and the plan's operations with the device's peak. A training that fails is
recorded with its error. Writes gpu.json and gpu.md after each training.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_train.errors import UserError
from rag_train.eval.benchmarks.harness import (
    CONTROLLER,
    benchmark_parser,
    exit_on_user_error,
    in_new_process,
    save,
)
from rag_train.eval.benchmarks.training import shaped, trajectories
from rag_train.model_presets import PRESETS
from rag_train.training.measure import measure, random_model
from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe, TrainRecipe

if TYPE_CHECKING:
    from rag_train.table import Table

EXAMPLES, TRAJECTORIES = 200, 12
"""Examples of imitation, and trajectories of pairs in the papers' shape."""
MODELS = {"7B": PRESETS["qwen2.5-7b"], "1.5B": PRESETS["qwen2.5-1.5b"]}
PACKED: dict[str, Any] = {"stage": "sft", "sft": SFTRecipe(pack_tokens=8192), "batch_size": 1}
TREE: dict[str, Any] = {"stage": "dpo", "dpo": DPORecipe(layout="tree"), "batch_size": 8}
PAIRS: dict[str, Any] = {"stage": "dpo", "dpo": DPORecipe(layout="pairs"), "batch_size": 2}
ADAPTERS: dict[str, Any] = {"lora": LoraRecipe(r=16, merge=False)}
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "7B, imitation, adapters": ("7B", PACKED | ADAPTERS),
    "7B, calibration on trees, adapters": ("7B", TREE | ADAPTERS),
    "7B, calibration on pairs, adapters": ("7B", PAIRS | ADAPTERS),
    "1.5B, imitation, all parameters": ("1.5B", PACKED),
    "1.5B, calibration on trees, all parameters": ("1.5B", TREE),
    "7B, imitation, adapters, 4-bit": ("7B", PACKED | ADAPTERS | {"quantize": "4bit"}),
    "7B, calibration on trees, adapters, sliced attention": ("7B", TREE | ADAPTERS | {"attention": "sliced"}),
    "7B, calibration on trees, adapters, SDPA": ("7B", TREE | ADAPTERS | {"attention": "sdpa"}),
}
"""Model and recipe keys of each training, the most important first."""


def main() -> None:
    options = benchmark_parser(__doc__).parse_args()
    import torch

    with exit_on_user_error():
        if not torch.cuda.is_available():
            raise UserError(
                "no GPU was found; this benchmark measures trainings on a GPU: run it where there is one"
            )
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as name:
        work = Path(name)
        data = examples(work)
        for training, (model, keys) in TRAININGS.items():
            try:
                if not (work / model).exists():
                    sizes = MODELS[model].configuration()
                    in_new_process(random_model, work / model, sizes, CONTROLLER, "bfloat16")
                found[training] = in_new_process(measure, recipe(work / model, data, keys))
            except Exception as error:  # the other trainings are still worth measuring
                found[training] = {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"}
            save(options.output, "gpu", {"device": torch.cuda.get_device_name(), "trainings": found}, table(found))


def table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return what was measured beside what was planned."""
    from rag_train.table import NOTHING, Table

    def cells(run: Mapping[str, Any]) -> list[str]:
        if "error" in run:
            return [run["error"], *[NOTHING] * 5]
        share = NOTHING if run["share"] is None else f"{run['share']:.0%}"
        measured, planned = (run[key] and run[key] / 2**30 for key in ("memory", "planned_memory"))
        return [
            f"{run['seconds']:.2f}",
            f"{run['tokens_per_second']:,.0f}",
            share,
            f"{measured:.1f}" if measured else NOTHING,
            f"{planned:.1f}",
            f"{planned / measured - 1:+.0%}" if measured else NOTHING,
        ]

    return Table(
        title="Training on a GPU",
        caption="The second epoch of each training, and the plan of --dry-run. Memory is what PyTorch reserved.",
        columns=[
            *("Training", "Seconds a step", "Tokens a second", "Share of the peak"),
            *("Memory, GiB", "Planned, GiB", "Planned over measured"),
        ],
        rows=[[name, *cells(run)] for name, run in found.items()],
    )


def examples(work: Path) -> dict[str, Path]:
    """Write the training data of both stages, and return their files by stage."""
    from rag_train.jobs.files import write_records

    write_records(work / "sft.jsonl", trajectories(EXAMPLES))
    return {"sft": work / "sft.jsonl", "dpo": shaped(work / "dpo.jsonl", TRAJECTORIES)}


def recipe(model: Path, data: dict[str, Path], keys: dict[str, Any]) -> TrainRecipe:
    """Return the recipe of a training with bf16 and recomputed activations."""
    return TrainRecipe(
        **keys,
        model=str(model),
        data=data[keys["stage"]],
        output_dir=str(model.parent / "run"),
        precision="bf16",
        gradient_checkpointing=True,
        max_tokens=4096,
        lr=1e-5,
        epochs=2,
    )


if __name__ == "__main__":
    main()
