"""Engines that sample from the model that is being trained.

`SharedPolicy` is transformers' ``generate`` on the model itself: new weights need no copy, but a batch of calls
waits for the longest of them. `VLLMPolicy` is vLLM in processes of its own, which get the new weights, or the new
adapter, through files.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import PartialState
from accelerate.utils import patch_environment
from peft import PeftModel

from rag_train.llm.base import LLM, Around, Completion, Sampling
from rag_train.llm.checkpoint import base_of
from rag_train.llm.transformers import TransformersEngine
from rag_train.llm.vllm import VLLMEngine
from rag_train.precision import exact_attention
from rag_train.training.recipe import TrainRecipe


class Policy(LLM, Protocol):
    """An engine whose weights follow the training."""

    async def update(self, model: Any, step: int) -> None:
        """Take the weights of ``model``, which has made ``step`` optimizer steps. No call may be in flight."""
        ...


@contextmanager
def generating(model: Any) -> Iterator[None]:
    """Prepare ``model`` to generate inside the block, with a cache of keys and values.

    The attention over trees has no cache, and gradient checkpointing would switch it off in training mode.
    """
    attention = model.config._attn_implementation
    model.eval()
    model.set_attn_implementation(exact_attention(model.config).get("attn_implementation"))  # None: its own choice
    try:
        yield
    finally:
        model.set_attn_implementation(attention)
        model.train()


class SharedPolicy(TransformersEngine):
    """An engine that generates with the weights that are trained."""

    async def update(self, model: Any, step: int) -> None:
        """Do nothing: the engine has the weights already."""


class VLLMPolicy(Around):
    """An engine to which new weights are sent; under LoRA the adapter alone, if `serves_adapters`."""

    def __init__(self, engine: VLLMEngine, folder: Path):
        """``folder`` is emptied, and holds the weights that are being sent."""
        super().__init__(engine)
        self._folder = folder
        self._adapter: str | None = None

    @classmethod
    def start(cls, recipe: TrainRecipe, folder: Path) -> VLLMPolicy:
        """Start vLLM with the model that the training starts from; see `VLLMEngine.start`."""
        assert recipe.rl is not None
        merges = recipe.lora is not None and not serves_adapters()
        with _own_gpu():
            engine = VLLMEngine.start(
                base_of(recipe.model)[0],
                dtype="bfloat16" if recipe.precision == "bf16" and not merges else "float32",
                seed=recipe.seed,
                max_lora_rank=recipe.lora.r if recipe.lora and not merges else None,
                max_model_len=recipe.rl.max_context,
                gpu_memory_utilization=recipe.rl.gpu_memory,
                reloads=True,
            )
        return cls(engine, folder)

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        return await super().complete(prompt, replace(sampling, adapter=self._adapter))

    async def update(self, model: Any, step: int) -> None:
        """Load the weights of ``model``, or those of its adapter. The first process writes them for all."""
        place, state = self._folder / f"step-{step}", PartialState()
        if state.is_main_process:
            # All processes have loaded the last weights: they trained on what they sampled with them.
            shutil.rmtree(self._folder, ignore_errors=True)
            if not isinstance(model, PeftModel):
                model.save_pretrained(place)
            elif serves_adapters():
                model.save_pretrained(str(place), selected_adapters=["default"])  # not the reference of rl.kl
            else:  # in fp32: bf16 would take small updates away
                copy.deepcopy(model).float().merge_and_unload().save_pretrained(place)
        state.wait_for_everyone()
        if (place / "adapter_config.json").exists():
            self._adapter = str(place)  # the engine loads it at the first call, as an adapter of its own name
        else:
            await self.load(place)  # of the engine


def serves_adapters() -> bool:
    """Return whether vLLM gets adapters, as on GPUs.

    On CPUs, vLLM 0.32 copies the adapter for each token that it computes. There, it gets the weights with the
    adapter merged into them.
    """
    return torch.cuda.is_available()


def _own_gpu() -> AbstractContextManager[None]:
    """Show processes that start meanwhile only the GPU of this process."""
    if not torch.cuda.is_available():
        return nullcontext()
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = before.split(",") if before else list(map(str, range(torch.cuda.device_count())))
    return patch_environment(CUDA_VISIBLE_DEVICES=visible[PartialState().local_process_index])
