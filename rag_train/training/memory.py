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
- Attention per layer and pair of tokens that it compares: nothing with FlexAttention. Sliced attention keeps 4
  bytes for each head, and 2 more in bf16; and 2 c k for each key of a slice of 128 tokens. The mask of padded
  batches, and of sdpa on packed rows, is kept as c bytes. A model that caps its scores keeps them in padded batches
  as in sliced attention.
- Encoder-decoders of T5's shape: each side's tokens in its own layers. Attention to the encoder adds a norm and
  3 c q for the decoder's tokens, and 2 c k for the encoder's. The gated MLP with dropout takes 8 c m, and each head
  3 c for each pair of tokens, because the scores have the bias of positions. Counted on a CPU, not on a GPU.
- Logits and the intermediate results of the loss. Tree rows: 12 bytes per vocabulary entry at each predicted token
  (the logarithms of the probabilities and two gradients).
  Encoder-decoders: the same at each token of the decoder.
  TRL's trainers compute the logits in tiles: 32 bytes per entry on the CPU, and 8 on a GPU, where a Triton kernel
  works in place. Trees and the CPU were measured, the GPU was not.
- 1 GiB for libraries, the context of the device and workspaces.

Tokens and predicted tokens are those of the pass that takes the most (`rag_train.training.epoch`), with padding.

Activations are freed by the time all gradients exist. Without gradient accumulation, therefore, only the larger of
the two is counted.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import init_empty_weights
from accelerate.utils import DeepSpeedPlugin
from transformers import AutoConfig

from rag_train.llm.checkpoint import base_of, model_class
from rag_train.precision import exact_attention
from rag_train.training.recipe import LoraRecipe, TrainRecipe
from rag_train.training.tree import SLICE

RUNTIME = 2.0**30
TILE = (4096, 32768)
"""Tokens and vocabulary entries of a tile in TRL's fused head."""


@dataclass(frozen=True)
class Sharding:
    """Division of the training states over processes: stage 0 for none, 2 for ZeRO-2, 3 for ZeRO-3 and FSDP."""

    stage: int = 0
    processes: int = 1
    deepspeed: bool = False
    fsdp: bool = False
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
    heads: int
    vocabulary: int
    linear: dict[str, tuple[int, int]]
    stored: int = 2
    """Bytes of a weight in the model's files."""
    capped: bool = False
    """Whether attention scores are capped, which no fused kernel does in padded batches."""
    encoder_decoder: bool = False
    """Whether an encoder reads the prompt; ``layers`` are then those of each side, of the larger one if they
    differ."""

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
    """Return the sizes of ``model``, a checkpoint or adapter directory or a Hub name, from its configuration alone.

    An adapter's are those of its base model.
    """
    config = AutoConfig.from_pretrained(base_of(model)[0])
    with init_empty_weights():
        empty = model_class(config).from_config(config)
    empty.tie_weights()
    text: Any = config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Architecture(
        parameters=empty.num_parameters(),
        layers=max(text.num_hidden_layers, getattr(text, "num_decoder_layers", None) or 0),
        hidden=text.hidden_size,
        mlp=getattr(text, "intermediate_size", None) or getattr(text, "d_ff", None) or 4 * text.hidden_size,
        queries=head * text.num_attention_heads,
        keys=head * (getattr(text, "num_key_value_heads", None) or text.num_attention_heads),
        heads=text.num_attention_heads,
        vocabulary=text.vocab_size,
        linear={
            name: (module.out_features, module.in_features)
            for name, module in empty.named_modules()
            if isinstance(module, torch.nn.Linear)
        },
        stored=(getattr(text, "dtype", None) or torch.float32).itemsize,
        capped=bool(exact_attention(config)),
        encoder_decoder=config.is_encoder_decoder,
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
        return Sharding(stage, processes, fsdp=True, offload_optimizer=offload, offload_weights=offload)
    return Sharding(processes=processes)


def estimate(
    recipe: TrainRecipe,
    model: Architecture,
    sharding: Sharding,
    tokens: int,
    predicted: float,
    attended: float = 0,
    *,
    gpu: bool = False,
) -> Memory:
    """Estimate the memory of a process in a forward pass of ``tokens``, ``predicted`` of them with logits, which
    compares ``attended`` pairs of tokens (`rag_train.training.epoch.Pass`)."""
    trained = model.trained(recipe.lora)
    bf16, half = recipe.precision == "bf16", _half(recipe, sharding)
    weight, number, residual = (2 if half else 4), (2 if bf16 else 4), (2 if half else 4)
    weights = float(model.parameters * weight)
    if recipe.rl and recipe.rl.kl and recipe.lora is None:
        weights *= 2  # the reference model
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
    norm = (4 + residual + number) * model.hidden
    mlp = (8 if model.encoder_decoder else 4) * number * model.mlp
    layer = tokens * (2 * norm + number * (3 * model.queries + 2 * model.keys) + mlp)
    if model.encoder_decoder:  # the decoder's attention to the encoder
        layer += predicted * (norm + number * 3 * model.queries) + (tokens - predicted) * number * 2 * model.keys
    layer += _attention(recipe, model, tokens, attended, number, gpu)
    if recipe.gradient_checkpointing:
        activations = layer + tokens * residual * model.hidden * model.layers
    else:
        activations = layer * model.layers
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=float(activations),
        logits=_logits(recipe, model, tokens, predicted, gpu),
        accumulates=recipe.gradient_accumulation > 1,
    )


def checkpoint_bytes(recipe: TrainRecipe, model: Architecture, sharding: Sharding) -> float:
    """Return the size of a checkpoint: trained weights, fp32 moments and, with DeepSpeed, fp32 weights.

    ZeRO-2 and FSDP write the trained weights twice, as the model and for themselves. ``save_only_model`` leaves the
    model alone.
    """
    if recipe.save_only_model:
        return float(model.trained(recipe.lora) * _saved(recipe, sharding))
    twice = sharding.stage == 2 or (sharding.stage == 3 and not sharding.deepspeed)
    weights = _saved(recipe, sharding) * (2 if twice else 1)
    return model.trained(recipe.lora) * float(weights + (12 if sharding.deepspeed else 8))


def result_bytes(recipe: TrainRecipe, model: Architecture, sharding: Sharding) -> float:
    """Return the size of the weights that a run ends with: the trained ones, or the model with them merged."""
    if recipe.lora is not None and recipe.lora.merge:
        return float(model.parameters * model.stored)
    return float(model.trained(recipe.lora) * _saved(recipe, sharding))


def _saved(recipe: TrainRecipe, sharding: Sharding) -> int:
    """Return the bytes of a trained weight in files."""
    return 2 if recipe.precision == "bf16" and sharding.deepspeed else 4


def _half(recipe: TrainRecipe, sharding: Sharding) -> bool:
    """Whether the weights are loaded in bf16, as in `trainer_arguments`."""
    return recipe.precision == "bf16" and (sharding.deepspeed or recipe.lora is not None)


def _attention(
    recipe: TrainRecipe, model: Architecture, tokens: int, attended: float, number: int, gpu: bool
) -> float:
    """Return the bytes that attention keeps in a layer, with ``number`` bytes for a number in matrix products."""
    if model.encoder_decoder:
        return attended * model.heads * 3 * number
    if not recipe.trees:
        return attended * (model.heads * (4 if number == 4 else 6) if model.capped else number)
    choice = ("flex" if gpu else "sliced") if recipe.attention == "auto" else recipe.attention
    if choice == "sdpa":
        return number * float(tokens) ** 2
    if choice == "flex":
        return 0.0
    return attended * (model.heads * (4 if number == 4 else 6) + number * 2 * model.keys / SLICE)


def _logits(recipe: TrainRecipe, model: Architecture, tokens: int, predicted: float, gpu: bool) -> float:
    """Return the bytes of logits: TRL's head, which stage rl uses on trees too, computes a tile at a time."""
    if model.encoder_decoder or (recipe.trees and not recipe.rl):
        return 12 * predicted * model.vocabulary
    entry = 8.0 if gpu else 32.0
    return entry * min(tokens, TILE[0]) * min(model.vocabulary, TILE[1])
