"""An estimate of the memory that a run needs, computed before the weights are loaded.

Bytes per process, for P parameters of which T are trained, N processes, L layers of hidden size h and MLP size m,
and q and k the summed sizes of the query heads and of the key heads:

- Weights: 4 P; or 2 P if they are loaded in bf16 (adapters, DeepSpeed), where QLoRA takes 4.127 bits per weight of
  the linear layers (Dettmers et al. 2023, section 3). Autocast keeps bf16 copies, another 2 P.
- Gradients and the two moments of AdamW: 4 T and 8 T; with DeepSpeed in bf16, 2 T and 12 T, which includes the fp32
  weights (ZeRO, Rajbhandari et al. 2020, section 3.1). The buckets of DDP hold the gradients a second time.
- ZeRO-2 divides gradients and moments by N. ZeRO-3 and FSDP also divide the weights, except two layers that are
  gathered at a time (section 5). Offloaded states are not counted.
- Activations per token and layer of Llama and Qwen2 in transformers, with c bytes per number in matrix products and
  r in the residual stream: (4 + r + c) h for each of two norms, c (q + 2 k) + 2 c q for attention, 4 c m for the
  gated MLP. This is the count of Korthikanti et al. 2022, section 4.1, without the attention matrix, which is not
  stored by fused kernels. With gradient checkpointing: r h per layer, and one complete layer (section 5).
- Logits and the intermediate results of the loss. Tree rows: 16 bytes per vocabulary entry at each predicted token.
  TRL's trainers compute the logits in tiles: 32 bytes per entry on the CPU, and 8 on a GPU, where a Triton kernel
  works in place. Trees and the CPU were measured, the GPU was not.
- 1 GiB for libraries, the context of the device and workspaces.

Activations are freed by the time all gradients exist. Without gradient accumulation, therefore, only the larger of
the two is counted.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
import torch
from accelerate import PartialState, init_empty_weights
from accelerate.utils import DeepSpeedPlugin
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM

from rag_train.errors import UserError
from rag_train.training.data import DPO, DataReport
from rag_train.training.packing import distinct_tokens, sortable
from rag_train.training.recipe import LoraRecipe, SFTRecipe, TrainRecipe
from rag_train.training.rows import TokenColumn

RUNTIME = 2.0**30
PADDING = 64
"""Row lengths are padded to a multiple of this number (`trainer_arguments`)."""
TILE = (4096, 32768)
"""Tokens and vocabulary entries of a tile in TRL's fused head."""


@dataclass(frozen=True)
class Sharding:
    """Division of the training states over processes: stage 0 for none, 2 for ZeRO-2, 3 for ZeRO-3 and FSDP."""

    stage: int = 0
    processes: int = 1
    deepspeed: bool = False
    offload_optimizer: bool = False
    offload_weights: bool = False


@dataclass(frozen=True)
class Architecture:
    """Sizes of a model; ``linear`` maps each linear layer's name to its numbers of outputs and inputs."""

    parameters: int
    layers: int
    hidden: int
    mlp: int
    queries: int
    keys: int
    vocabulary: int
    linear: dict[str, tuple[int, int]]

    def trained(self, lora: LoraRecipe | None) -> int:
        """Return the number of trained parameters: all, or those of the adapters."""
        if lora is None:
            return self.parameters
        targets = tuple(f".{name}" for name in lora.target_modules)  # PEFT also matches the ends of names
        sizes = [size for name, size in self.linear.items() if f".{name}".endswith(targets)]
        return lora.r * sum(outputs + inputs for outputs, inputs in sizes)


@dataclass(frozen=True)
class Memory:
    """Peak memory of a process in bytes."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    accumulates: bool

    @property
    def total(self) -> float:
        passing = self.activations + self.logits
        both = passing + self.gradients if self.accumulates else max(passing, self.gradients)
        return RUNTIME + self.weights + self.optimizer + both


def architecture(model: str) -> Architecture:
    """Return the sizes of ``model``, a checkpoint directory or Hub name, from its configuration alone."""
    config = AutoConfig.from_pretrained(model)
    with init_empty_weights():
        empty = AutoModelForCausalLM.from_config(config)
    empty.tie_weights()
    text: Any = config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Architecture(
        parameters=empty.num_parameters(),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        mlp=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        queries=head * text.num_attention_heads,
        keys=head * (getattr(text, "num_key_value_heads", None) or text.num_attention_heads),
        vocabulary=text.vocab_size,
        linear={
            name: (module.out_features, module.in_features)
            for name, module in empty.named_modules()
            if isinstance(module, torch.nn.Linear)
        },
    )


def current_sharding() -> Sharding:
    """Return the sharding that the launcher configured, from the environment.

    On CPUs, PartialState knows the number of processes only when TrainingArguments exist.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        plugin = DeepSpeedPlugin()
        return Sharding(
            stage=int(plugin.zero_stage),
            processes=processes,
            deepspeed=True,
            offload_optimizer=plugin.offload_optimizer_device != "none",
            offload_weights=plugin.offload_param_device != "none",
        )
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        offload = os.environ.get("FSDP_OFFLOAD_PARAMS") == "true"
        stage = 2 if os.environ.get("FSDP_RESHARD_AFTER_FORWARD") == "false" else 3
        return Sharding(stage, processes, offload_optimizer=offload, offload_weights=offload)
    return Sharding(processes=processes)


def largest_pass(recipe: TrainRecipe, rows: Dataset, report: DataReport) -> tuple[int, float]:
    """Return the number of tokens in the largest forward pass, and how many of them are predicted."""
    size = recipe.batch_size
    if recipe.stage == "sft":
        longest = int(TokenColumn(rows, "input_ids").lengths().max())
        if recipe.pack_tokens:
            tokens = max(longest, min(recipe.pack_tokens, report.tokens))
            return tokens, tokens * report.trained_tokens / report.tokens
        tokens = min(size, len(rows)) * PADDING * math.ceil(longest / PADDING)
        return tokens, tokens
    prompt, chosen, rejected = (TokenColumn(rows, name) for name in DPO)
    if not recipe.trees:
        longest = int((prompt.lengths() + np.maximum(chosen.lengths(), rejected.lengths())).max())
        tokens = 2 * min(size, len(rows)) * PADDING * math.ceil(longest / PADDING)
        return tokens, tokens

    def pairs(numbers: range) -> list[bytes]:
        return [sortable(prompt[i]) + sortable(side[i]) for i in numbers for side in (chosen, rejected)]

    batches = (range(i, min(i + size, len(rows))) for i in range(0, len(rows), size))
    snippets = int((chosen.lengths() + rejected.lengths()).max())
    return max(distinct_tokens(pairs(batch)) for batch in batches), size * snippets


def estimate(recipe: TrainRecipe, model: Architecture, sharding: Sharding, tokens: int, predicted: float) -> Memory:
    """Estimate the memory of a process whose largest forward pass has ``tokens``, ``predicted`` of them with
    logits."""
    trained = model.trained(recipe.lora)
    bf16 = recipe.precision == "bf16"
    half = bf16 and (sharding.deepspeed or recipe.lora is not None)  # as in `trainer_arguments`
    weight, number, residual = (2 if half else 4), (2 if bf16 else 4), (2 if half else 4)
    weights = float(model.parameters * weight)
    if recipe.quantize == "4bit":
        weights -= (weight - 4.127 / 8) * sum(
            math.prod(size) for name, size in model.linear.items() if name != "lm_head"
        )
    if recipe.lora is not None:
        weights += trained * (2 if sharding.deepspeed and half else 4)
    elif bf16 and not half:
        weights += 2 * model.parameters
    gradients, optimizer = (
        (2 * trained, 12 * trained) if sharding.deepspeed and half else (4 * trained, 8 * trained)
    )
    if sharding.deepspeed and not half:
        optimizer += 4 * trained  # DeepSpeed also copies fp32 weights
    if sharding.stage == 0 and sharding.processes > 1:
        gradients *= 2
    if sharding.stage >= 2:
        gradients, optimizer = gradients / sharding.processes, optimizer / sharding.processes
    if sharding.stage == 3:
        gathered = 2 * weights / model.layers
        weights = gathered + (0 if sharding.offload_weights else weights / sharding.processes)
    if sharding.offload_optimizer:
        gradients = optimizer = 0
    layer = (
        2 * (4 + residual + number) * model.hidden
        + number * (3 * model.queries + 2 * model.keys)
        + 4 * number * model.mlp
    )
    kept = residual * model.hidden * model.layers + layer if recipe.gradient_checkpointing else layer * model.layers
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=float(tokens * kept),
        logits=_logits(recipe, model.vocabulary, tokens, predicted),
        accumulates=recipe.gradient_accumulation > 1,
    )


def _logits(recipe: TrainRecipe, vocabulary: int, tokens: int, predicted: float) -> float:
    if recipe.trees:
        return 16 * predicted * vocabulary
    entry = 8.0 if torch.cuda.is_available() else 32.0
    return entry * min(tokens, TILE[0]) * min(vocabulary, TILE[1])


def check_memory(recipe: TrainRecipe, rows: Dataset, report: DataReport) -> str:
    """Return a line that states the model's size, the estimated memory and the number of steps.

    Raises UserError with the settings to change if the estimate exceeds the device's memory and
    ``recipe.check_memory`` is true. On the CPU, the processes of a machine share its memory, offloaded states
    included.
    """
    model, sharding = architecture(recipe.model), current_sharding()
    if torch.cuda.is_available():
        available = torch.cuda.get_device_properties(PartialState().device).total_memory
    else:
        available = psutil.virtual_memory().total / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        sharding = replace(sharding, offload_optimizer=False, offload_weights=False)

    def need(candidate: TrainRecipe) -> float:
        candidate = candidate.on(sharding.processes)
        return estimate(candidate, model, sharding, *largest_pass(candidate, rows, report)).total

    needed = need(recipe)
    if recipe.check_memory and needed > available:
        remedy = next((text for text, changed in _remedies(recipe) if need(changed) <= available), None)
        remedy = f"set {remedy}, or" if remedy else "no setting is enough for one device:"
        raise UserError(
            f"model {recipe.model}: training needs about {_gib(needed)} per device, which has {_gib(available)}; "
            f"{remedy} shard over more devices (launch/accelerate/zero3.yaml, zero3_offload.yaml); "
            "check_memory=false skips this check"
        )
    trained, share = model.trained(recipe.lora), report.trained_tokens / report.tokens
    steps = _steps(recipe.on(sharding.processes), rows, report, sharding.processes)
    return (
        f"model {_short(model.parameters)}, trained {_short(trained)}, about {_gib(needed)} per device of "
        f"{_gib(available)}; {steps}, {_short(report.tokens)} tokens "
        f"per epoch, {share:.0%} of them trained"
    )


def _remedies(recipe: TrainRecipe) -> list[tuple[str, TrainRecipe]]:
    """List changes of the recipe that save memory: each alone, the smallest change first, then more and more
    together."""
    small = {"batch_size": 1}
    if recipe.global_batch is None:
        small["gradient_accumulation"] = recipe.batch_size * recipe.gradient_accumulation
    changes: list[tuple[str, dict[str, Any]]] = []
    if not recipe.gradient_checkpointing:
        changes.append(("gradient_checkpointing=true", {"gradient_checkpointing": True}))
    if recipe.batch_size > 1:
        changes.append((" ".join(f"{key}={value}" for key, value in small.items()), small))
    if recipe.pack_tokens and recipe.pack_tokens > recipe.max_tokens:
        changes.append((f"sft.pack_tokens={recipe.max_tokens}", {"sft": SFTRecipe(pack_tokens=recipe.max_tokens)}))
    if recipe.precision == "fp32":
        changes.append(("precision=bf16", {"precision": "bf16"}))
    if recipe.lora is None:
        changes.append(("lora.r=16", {"lora": LoraRecipe()}))
    remedies = [(text, replace(recipe, **change)) for text, change in changes]
    together, texts = recipe, []
    for text, change in changes:
        together, texts = replace(together, **change), [*texts, text]
        remedies.append((" ".join(texts), together))
    return remedies


def _steps(recipe: TrainRecipe, rows: Dataset, report: DataReport, processes: int) -> str:
    about = "about " if recipe.pack_tokens else ""  # the rows have not been packed yet
    passes = math.ceil(report.tokens / recipe.pack_tokens) if recipe.pack_tokens else len(rows) / recipe.batch_size
    per_epoch = math.ceil(math.ceil(math.ceil(passes) / processes) / recipe.gradient_accumulation)
    steps = math.ceil(per_epoch * recipe.epochs)
    unit = "packed rows" if recipe.pack_tokens else "examples"
    size = recipe.batch_size * recipe.gradient_accumulation * processes
    return f"{about}{steps:,} steps of {size:,} {unit}"


def _gib(size: float) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _short(count: float) -> str:
    for letter, power in (("B", 1e9), ("M", 1e6)):
        if count >= power:
            return f"{count / power:.1f} {letter}"
    return f"{count:,.0f}"
