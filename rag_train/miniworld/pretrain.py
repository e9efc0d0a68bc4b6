"""Training of the mini model, a small Qwen2, from scratch on the text of the mini world.

Documents are packed into rows without padding. Positions restart at each document, from which transformers derives
the block-diagonal attention. Logits are computed only at trained positions.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM

from rag_train.miniworld.recipe import PretrainConfig
from rag_train.miniworld.text import VERSION, TextSource, build_tokenizer
from rag_train.miniworld.world import World
from rag_train.precision import has_bf16
from rag_train.progress import progress
from rag_train.provenance import code_version, machine
from rag_train.training.masking import IGNORE, encode_segments

SHIPPED = Path(__file__).parent / "checkpoint"
"""Checkpoints shipped with the package, named by the hash of their recipe; made by `rag-train demo --scratch`."""

RECORD = "pretrain.json"
"""File in a checkpoint that records its recipe and its training."""


def packed_rows(source: TextSource, tokenizer, config: PretrainConfig) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield endless batches (ids, labels, positions), each int64 of shape (rows, row_tokens).

    Labels are already shifted: ``labels[i]`` is the token to predict at position i. A document that does not fit in
    the rest of its row is truncated.
    """
    queue: list[tuple[list[int], list[int]]] = []
    while True:
        batch = torch.full((3, config.rows, config.row_tokens), 0)
        batch[1] = IGNORE
        for row in range(config.rows):
            at = 0
            while at < config.row_tokens:
                if not queue:
                    queue = encode_segments(tokenizer, [source.document() for _ in range(64)])
                ids, labels = queue.pop()
                size = min(len(ids), config.row_tokens - at)
                batch[0, row, at : at + size] = torch.tensor(ids[:size])
                shifted = [*labels[1:], IGNORE][:size]
                batch[1, row, at : at + size] = torch.tensor(shifted)
                batch[2, row, at : at + size] = torch.arange(size)
                at += size
        yield batch[0], batch[1], batch[2]


def build_model(config: PretrainConfig, tokenizer) -> Qwen2ForCausalLM:
    """Create the model with random weights."""
    torch.manual_seed(config.seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=math.ceil(len(tokenizer) / 64) * 64,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=2048,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
            initializer_range=config.initializer_range,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


@torch.no_grad()
def seed_reading(model: Qwen2ForCausalLM) -> None:
    """Initialize the first two layers as an approximate induction circuit (Olsson et al. 2022).

    From this initialization the model learns to read within minutes; from random weights it did not learn to read
    in 12 million tokens. The idea follows Trockman & Kolter (2023).

    The heads of layer 1 attend to the tokens 1, 2, 3 and 4 positions back and write each into its own subspace. The
    heads of layer 2 compare these subspaces in dimensions that rotate slowly: a token after "The R of X is" attends
    to a token after the same words and copies it. Training makes the circuit precise and learns when to use it.
    """
    config, layers = cast(Any, model.config), cast(Any, model.model.layers)  # torch's types are wider
    width, heads = config.hidden_size, config.num_attention_heads
    size = width // heads
    rates = config.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2) / size)  # in radians per token

    def orthonormal(rows: int, columns: int) -> torch.Tensor:
        return torch.linalg.qr(torch.randn(columns, rows))[0].T

    back = layers[0].self_attn
    seen, subspaces = orthonormal(size, width), orthonormal(width, width).split(size)
    fast = 7.0 * (rates > 0.003)
    for head, subspace in enumerate(subspaces):
        at, phase = slice(head * size, (head + 1) * size), rates * (head + 1)
        back.q_proj.bias[at] = torch.cat([fast * phase.cos(), -fast * phase.sin()])
        back.k_proj.bias[at] = torch.cat([fast, 0 * fast])
        back.q_proj.weight[at] *= 0.1
        back.k_proj.weight[at] *= 0.1
        back.v_proj.weight[at] = seen
        back.o_proj.weight[:, at] = 0.12 * subspace.T

    match = layers[1].self_attn
    slow = torch.cat([rates, rates]) <= 0.004
    copied = orthonormal(width, width).split(size)
    for head, copy in enumerate(copied):
        at = slice(head * size, (head + 1) * size)
        codes = orthonormal(size, size)[: int(slow.sum())]
        one, two, three, four = ((codes @ subspace) for subspace in subspaces[:4])
        subject = len(codes) * 2 // 3  # dimensions for the subject; the others are for the relation
        query, key = torch.zeros(size, width), torch.zeros(size, width)
        query[slow] = torch.cat([1.7 * one[:subject], 2.2 * three[subject:]])
        key[slow] = torch.cat([1.7 * two[:subject], 2.2 * four[subject:]])
        match.q_proj.weight[at], match.k_proj.weight[at] = query, key
        match.v_proj.weight[at] = copy
        match.o_proj.weight[:, at] = 0.12 * copy.T


def pretrain(world: World, config: PretrainConfig, on_step: Callable[[int, float], None]):
    """Train the model from scratch and return (model, tokenizer). Calls ``on_step(step, loss)`` after every step.

    Uses AdamW with a warm-up, a constant learning rate and a linear cool-down, and bf16 autocast over float32
    weights where the processor has bf16. With many small steps, the model learns to read earlier than with few
    large steps over the same number of tokens.
    """
    tokenizer = build_tokenizer(world)
    model = build_model(config, tokenizer)
    seed_reading(model)
    source = TextSource(world, config.seed)
    batches = packed_rows(source, tokenizer, config)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, betas=(0.9, 0.98), weight_decay=config.weight_decay, fused=True
    )
    bf16 = has_bf16()
    for step in range(config.steps):
        source.progress = step / config.steps
        left = 1 - source.progress
        scale = min(1.0, (step + 1) / (config.warmup * config.steps), left / config.cooldown)
        for group in optimizer.param_groups:
            group["lr"] = config.lr * scale
        ids, labels, positions = next(batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            hidden = model.model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
            trained = labels != IGNORE
            logits = model.lm_head(hidden[trained])
        loss = F.cross_entropy(logits.float(), labels[trained])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        on_step(step, loss.item())
    return model.eval(), tokenizer


def pretrained(world: World, config: PretrainConfig, cache: Path, *, scratch: bool = False) -> tuple[Path, bool]:
    """Return the mini model's checkpoint directory, and whether the model had to be trained.

    A model with the same recipe is taken from ``cache`` or, unless ``scratch`` is true, from the checkpoints
    shipped with the package. Otherwise it is trained, with a progress bar, and saved in ``cache``.
    """
    recipe = {"world": asdict(world.config), "pretrain": asdict(config), "text": VERSION}
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:12]
    target = cache / key
    for directory in (target,) if scratch else (target, SHIPPED / key):
        if (directory / RECORD).is_file():
            return directory, False
    losses: list[tuple[int, float]] = []
    recent: list[float] = []
    start = time.perf_counter()
    with progress("training the mini model", config.steps) as advance:

        def on_step(step: int, loss: float) -> None:
            recent.append(loss)
            if (step + 1) % 100 == 0 or step + 1 == config.steps:
                losses.append((step + 1, sum(recent) / len(recent)))
                recent.clear()
                advance(0, f"loss {losses[-1][1]:.3f}")
            advance()

        model, tokenizer = pretrain(world, config, on_step)
    temporary = cache / f"{key}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    record = recipe | {
        "losses": losses,
        "seconds": time.perf_counter() - start,
        "code_version": code_version(),
        "machine": machine(),
        "sha256": hashlib.sha256((temporary / "model.safetensors").read_bytes()).hexdigest(),
    }
    (temporary / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    return target, True
