"""Memory and speed of a training, beside those that its plan states."""

from __future__ import annotations

import re
from pathlib import Path

from rag_train.model_presets import PRESETS
from rag_train.selftest.registry import part
from rag_train.selftest.work import CONTROLLER, Work
from rag_train.table import gib

MODELS = {"qwen2.5-1.5b": 40 * 2**30, "qwen2.5-0.5b": 0}
"""Presets by the memory that a GPU needs to have, the largest first; their weights are random."""
MOST = 1.25
"""How many times as much memory as planned a training on a GPU may take."""


@part("memory and speed, as planned", short=True)
def measured(work: Work) -> str:
    """Train all parameters for two epochs, of which the second is measured."""
    from rag_train.training.measure import measure, random_model
    from rag_train.training.recipe import SFTRecipe, TrainRecipe

    model, name = CONTROLLER, "the small model"
    if work.gpus:
        import torch

        memory = torch.cuda.get_device_properties(0).total_memory
        name = next(preset for preset, least in MODELS.items() if memory >= least)
        model = random_model(work.folder / name, PRESETS[name].configuration(), CONTROLLER, "bfloat16")
    found = measure(
        TrainRecipe(
            stage="sft",
            model=str(model),
            data=work.examples("sft"),
            output_dir=str(work.folder / "measured"),
            lr=1e-5,
            epochs=2,
            precision="bf16" if work.gpus else "fp32",
            gradient_checkpointing=True,
            sft=SFTRecipe(pack_tokens=4096 if work.gpus else 1024),
        )
    )
    memory, planned = found["memory"] or _peak(), found["planned_memory"]
    assert memory < MOST * planned or not work.gpus, f"{gib(memory)} were taken, {gib(planned)} planned"
    share = "" if found["share"] is None else f", {found['share']:.0%} of the GPU's peak (the plan takes 30%)"
    return f"{name}: {gib(memory)}, planned {gib(planned)}; {found['tokens_per_second']:,.0f} tokens/s{share}"


def _peak() -> float:
    """Return the most memory that this process has had."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
