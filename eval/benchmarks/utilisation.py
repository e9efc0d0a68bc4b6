"""Model FLOPs utilisation of packed imitation learning on a GPU, for a model of Qwen2.5-7B's shape.

The weights are random, and in bf16 like AdamW's moments, so that full training fits one GPU of 140 GiB. Only the
operations of the model's own forward and backward pass count: per weight and token, two operations in the forward
pass, two for the gradient of the weight's input and, if the weight is trained, two for the weight's own gradient;
attention is counted in the same way. Recomputation and adapters do not count.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import pairwise
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, TrainerCallback, TrainingArguments
from transformers.utils import is_liger_kernel_available

from rag_train.model_presets import PRESETS
from rag_train.training.devices import device_called
from rag_train.training.masking import IGNORE
from rag_train.training.recipe import LoraRecipe
from rag_train.training.sft import PackedTrainer, packed_rows
from rag_train.training.tree import attention_for_trees

QWEN_7B = PRESETS["qwen2.5-7b"].configuration()
EXAMPLES, LENGTH = 8, 1024
"""Examples per row, and tokens per example; the second half of each example is trained."""
WARM_UP, STEPS = 5, 10
"""Optimizer steps before and during the measurement."""


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.ticks: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ticks.append(time.perf_counter())


def utilisation(shape: dict[str, Any] = QWEN_7B, peak: float | None = None) -> dict[str, dict[str, float]]:
    """Return, for LoRA and full training, the seconds and model FLOPs of a step and their share of the GPU's peak.

    ``peak`` is in operations per second; the default is that of the GPU (`rag_train.training.devices`), or nan.
    """
    device = device_called(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    peak = peak or (device.peak if device else float("nan"))
    result = {}
    for training in ("lora", "full"):
        seconds = _step_seconds(shape, adapters=training == "lora")
        flops = _step_flops(shape, trained=training == "full")
        result[training] = {"seconds": seconds, "flops": flops, "utilisation": flops / seconds / peak}
    return result


def _step_seconds(shape: dict[str, Any], *, adapters: bool) -> float:
    args = TrainingArguments(
        output_dir=tempfile.gettempdir(),  # nothing is saved
        max_steps=WARM_UP + STEPS,
        per_device_train_batch_size=1,
        use_cpu=not torch.cuda.is_available(),
        bf16=True,
        gradient_checkpointing=True,
        use_liger_kernel=torch.cuda.is_available() and is_liger_kernel_available(),
        liger_kernel_config={"fused_linear_cross_entropy": False},
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    with args.device:
        config: Any = Qwen2Config.from_dict(shape)
        model: Any = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=attention_for_trees(config)
        )
    if adapters:
        from peft import LoraConfig, get_peft_model

        lora = LoraRecipe()
        model = get_peft_model(
            model, LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=lora.target_modules)
        )
        model.enable_input_require_grads()
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(EXAMPLES * (WARM_UP + STEPS)):
        ids = torch.randint(0, shape["vocab_size"], (LENGTH,), generator=generator).tolist()
        rows.append({"input_ids": ids, "labels": [IGNORE] * (LENGTH // 2) + ids[LENGTH // 2 :]})
    clock = Clock()
    dataset = packed_rows(rows, EXAMPLES * LENGTH, 0)
    PackedTrainer(model=model, args=args, train_dataset=dataset, callbacks=[clock]).train()
    ticks = clock.ticks[WARM_UP - 1 :]
    return statistics.median(b - a for a, b in pairwise(ticks))


def _step_flops(shape: dict[str, Any], *, trained: bool) -> float:
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    key_size = hidden * shape["num_key_value_heads"] // shape["num_attention_heads"]
    weights = layers * (2 * hidden * (hidden + key_size) + 3 * hidden * shape["intermediate_size"])
    head = hidden * shape["vocab_size"] / 2  # for half of the tokens
    attention = layers * 2 * hidden * LENGTH / 2  # scores and weighted values, over half the length on average
    passes = 3 if trained else 2
    return 2 * EXAMPLES * LENGTH * ((weights + head) * passes + attention * 3)
