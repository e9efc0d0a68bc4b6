"""Trainings that are measured: a model with random weights, and time and peak memory beside the plan."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_train.training.recipe import TrainRecipe

if TYPE_CHECKING:
    from rag_train.training.plan import Plan


def random_model(directory: Path, sizes: Mapping[str, Any], tokenizer: Path, dtype: str = "float32") -> Path:
    """Write a Qwen2 model of these sizes with random weights and the tokenizer of another model."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from rag_train.llm.checkpoint import load_tokenizer

    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # the large models are slow to draw on a CPU
        config: Any = Qwen2Config.from_dict(dict(sizes))
        model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(directory)
    load_tokenizer(str(tokenizer)).save_pretrained(directory)
    return directory


def clock_of_steps() -> Any:
    """Return a callback whose ``ticks`` are the times at which optimizer steps end."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.ticks: list[float] = []

        def on_step_end(self, args, state, control, **kwargs):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.ticks.append(time.perf_counter())

    return Clock()


def measure(recipe: TrainRecipe) -> dict[str, Any]:
    """Train for two epochs without saving, and return the second epoch's time, the peak memory, and the plan's.

    Seconds are those of an optimizer step. ``memory`` is what PyTorch reserved and ``used`` what of it was in use,
    in bytes, at their peaks; None on a CPU. ``share`` is the share of the device's peak that the plan's operations
    reached, None if the device's speed is not known.
    """
    import torch

    from rag_train.training.build import build_trainer
    from rag_train.training.load import load_data, prepare_libraries
    from rag_train.training.plan import plan

    prepare_libraries()
    tokenizer, rows, report = load_data(recipe)
    planned = plan(recipe, rows, report)
    trainer, clock = build_trainer(planned.recipe, rows, tokenizer, Path(recipe.output_dir)), clock_of_steps()
    trainer.args.save_strategy = "no"
    trainer.add_callback(clock)
    trainer.train()
    second = clock.ticks[len(clock.ticks) // 2 - 1 :]
    seconds, device, gpu = second[-1] - second[0], planned.device, torch.cuda.is_available()
    return {
        "steps": len(second) - 1,
        "seconds": seconds / (len(second) - 1),
        "tokens_per_second": planned.epoch.tokens / seconds,
        "share": epoch_operations(planned) / seconds / device.peak if device else None,
        "memory": torch.cuda.max_memory_reserved() if gpu else None,
        "used": torch.cuda.max_memory_allocated() if gpu else None,
        "planned_memory": planned.memory.total,
    }


def epoch_operations(planned: Plan) -> float:
    """Return the operations of one epoch, without those of the reference, which are before the first."""
    one, two = (replace(planned, recipe=replace(planned.recipe, epochs=epochs)) for epochs in (1, 2))
    return two.operations - one.operations
