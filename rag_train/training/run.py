"""What both stages share around TRL's trainers: arguments, complete checkpoints, progress, a finite loss."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather
from transformers import TrainerCallback

from rag_train.errors import UserError
from rag_train.progress import progress
from rag_train.training.config import TrainRecipe

COMPLETE = "complete.json"


def trainer_arguments(recipe: TrainRecipe, checkpoints: Path) -> dict[str, Any]:
    """The arguments that SFTConfig and DPOConfig have in common.

    With DeepSpeed, which keeps fp32 weights of its own, and under adapters the model is loaded in bf16; otherwise
    in fp32, since bf16 weights are too coarse for updates of these sizes.
    """
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if recipe.precision == "bf16" else "no"  # the recipe decides
    half = recipe.precision == "bf16" and (deepspeed or recipe.lora is not None)
    return {
        "output_dir": str(checkpoints),
        "model_init_kwargs": {"dtype": "bfloat16" if half else "float32"},
        "seed": recipe.seed,
        "learning_rate": recipe.lr,
        "lr_scheduler_type": recipe.schedule,
        "warmup_steps": recipe.warmup_ratio,
        "num_train_epochs": recipe.epochs,
        "per_device_train_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": recipe.gradient_accumulation,
        "use_cpu": not torch.accelerator.is_available(),
        "bf16": recipe.precision == "bf16",
        "gradient_checkpointing": recipe.gradient_checkpointing,
        "pad_to_multiple_of": 64,  # few shapes: a batch fits the memory freed by another, and finds its kernels
        "max_length": None,  # the rows are cut already, between segments
        "save_steps": recipe.save_steps,
        "save_total_limit": 2,
        "logging_steps": recipe.logging_steps,
        "logging_nan_inf_filter": False,
        "include_num_input_tokens_seen": "non_padding",
        "report_to": recipe.report_to,
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
    }


def lora_config(recipe: TrainRecipe):
    """The PEFT configuration, None for full parameters."""
    if recipe.lora is None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=recipe.lora.r,
        lora_alpha=recipe.lora.alpha,
        lora_dropout=recipe.lora.dropout,
        target_modules=recipe.lora.target_modules,
        task_type="CAUSAL_LM",
    )


def require_finite(loss: torch.Tensor, step: int) -> torch.Tensor:
    """``loss``, a scalar. Raises UserError, in every process, if that of any is infinite or not a number."""
    losses = gather(loss)
    assert isinstance(losses, torch.Tensor)
    if not torch.isfinite(losses).all():
        raise UserError(f"step {step + 1}: the loss is infinite or not a number; lower lr, or try precision=fp32")
    return loss


def newest_complete(checkpoints: Path) -> Path | None:
    """The newest checkpoint that every process finished writing, and that has lost no file since."""
    found = sorted(checkpoints.glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2]), reverse=True)
    return next((checkpoint for checkpoint in found if _is_complete(checkpoint)), None)


def _is_complete(checkpoint: Path) -> bool:
    try:
        sizes = json.loads((checkpoint / COMPLETE).read_text())
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


class MarkComplete(TrainerCallback):
    """Writes the sizes of a checkpoint's files into it, once all processes have written theirs."""

    def on_save(self, args, state, control, **kwargs):
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            assert args.output_dir is not None
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            files = [path for path in checkpoint.rglob("*") if path.is_file()]
            mark = checkpoint / f"{COMPLETE}.tmp"
            mark.write_text(json.dumps({str(f.relative_to(checkpoint)): f.stat().st_size for f in files}))
            mark.replace(checkpoint / COMPLETE)


class ProgressBar(TrainerCallback):
    """Steps, rate, time left and loss, shown by the first process. Use it as a context, so that errors end it."""

    def __init__(self, stage: str):
        self._stage = stage
        self._stack = ExitStack()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            bar = progress(self._stage, total=state.max_steps, done=state.global_step)
            self._advance = self._stack.enter_context(bar)

    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            self._advance()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and logs and "loss" in logs:
            self._advance(0, f"loss {float(logs['loss']):.4f}")
