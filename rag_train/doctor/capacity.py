"""The largest model preset that a machine can serve and train, by the memory estimate of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rag_train.model_presets import PRESETS, Preset
from rag_train.training.memory import RUNTIME, Architecture, Sharding, estimate
from rag_train.training.recipe import LoraRecipe, SFTRecipe, TrainRecipe

TOKENS = 4096
"""Tokens of a packed row, and of each sequence that is served."""
SEQUENCES = 8
"""Sequences that are served at a time, at the least."""
SERVED = 0.9
"""Share of a device's memory that vLLM takes."""


def largest(memory: int, devices: int) -> dict[str, str | None]:
    """Return the largest preset for serving ("serve"), LoRA ("lora") and full training ("train"), or None.

    ``memory`` is that of each of the ``devices``, which share a served model and shard a trained one (ZeRO-3).
    """
    uses: dict[str, Callable[[Preset], bool]] = {
        "serve": lambda preset: serving(preset) <= SERVED * memory * devices,
        "lora": lambda preset: training(preset, LoraRecipe(), devices) <= memory,
        "train": lambda preset: training(preset, None, devices) <= memory,
    }
    ordered = sorted(PRESETS, key=lambda name: PRESETS[name].parameters(), reverse=True)
    return {use: next((name for name in ordered if fits(PRESETS[name])), None) for use, fits in uses.items()}


def serving(preset: Preset) -> float:
    """Return the bytes for weights in bf16 and the keys and values of `SEQUENCES` sequences."""
    return RUNTIME + 2 * preset.parameters() + SEQUENCES * TOKENS * preset.key_value_bytes()


def training(preset: Preset, lora: LoraRecipe | None, devices: int) -> float:
    """Return the bytes that a device needs for packed rows of `TOKENS`, half of them trained, in bf16."""
    recipe = TrainRecipe(
        stage="sft",
        model=preset.hub,
        data=Path(),
        output_dir="",
        lr=1e-5,
        epochs=1,
        precision="bf16",
        gradient_checkpointing=True,
        lora=lora,
        sft=SFTRecipe(pack_tokens=TOKENS),
    )
    sharding = Sharding(3, devices, deepspeed=True) if devices > 1 else Sharding()
    return estimate(recipe, sizes(preset), sharding, TOKENS, TOKENS / 2).total


def sizes(preset: Preset) -> Architecture:
    """Return the sizes of the preset's model as the memory estimate takes them."""
    return Architecture(
        parameters=preset.parameters(),
        layers=preset.layers,
        hidden=preset.hidden,
        mlp=preset.mlp,
        queries=preset.heads * preset.head,
        keys=preset.key_heads * preset.head,
        heads=preset.heads,
        vocabulary=preset.vocabulary,
        linear=preset.linear(),
    )
