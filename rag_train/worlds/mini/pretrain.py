"""Training of the mini model, a small Qwen2, from scratch on the text of the mini world.

Documents are packed into rows without padding. Positions restart at each document, from which transformers derives
the block-diagonal attention. Logits are computed only at trained positions.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM

from rag_train.jobs.files import new_directory, sha256, write_text
from rag_train.precision import has_bf16
from rag_train.progress import progress
from rag_train.provenance import code_version, machine, settings_hash
from rag_train.training.masking import IGNORE, encode_segments
from rag_train.worlds.mini.muon import Muon
from rag_train.worlds.mini.settings import PretrainConfig
from rag_train.worlds.mini.text import VERSION, TextSource, build_tokenizer
from rag_train.worlds.mini.world import World

SHIPPED = Path(__file__).parent / "checkpoint"
"""Checkpoints shipped with the package, of seed 0: ``base`` is the mini model. ``controller`` is the same after the
demo's cold start: it writes DeepRAG's transcript, with decisions at random."""

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

    Head n of layer 1 attends to the token n positions back and writes it into a subspace of its own. The heads of
    layer 2 compare these subspaces in dimensions that rotate slowly. After "The R of X Y is", where X Y is a name
    of two words, they attend to a token that comes after the same words, and copy it; other heads do the same after
    names of one word, and after the first word of the value. Training makes the circuit precise and learns when to
    use it.
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
        # A token's own embedding is half as large as what layer 1 writes.
        tokens = [2 * codes @ seen, *(codes @ subspace for subspace in subspaces)]
        query, key = torch.zeros(size, width), torch.zeros(size, width)
        query[slow], key[slow] = _compared(tokens, MATCHES[head % len(MATCHES)])
        match.q_proj.weight[at], match.k_proj.weight[at] = query, key
        match.v_proj.weight[at] = copy
        match.o_proj.weight[:, at] = 0.12 * copy.T


MATCHES = ((1, 2, 4), (1, 2, 4), (1, 3), (0, 2, 5))
"""Tokens that the heads of layer 2 compare, by their distance from the place where the next token is predicted: the
name's two words and the relation (twice), the name's one word and the relation, and the value's first word, the
name's last and the relation."""


def _compared(tokens: Sequence[torch.Tensor], distances: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return query and key weights that compare the tokens at ``distances`` from the query with those one further
    from the key. The dimensions are shared out equally."""
    parts = torch.arange(len(tokens[0])).tensor_split(len(distances))
    query = [2.0 * tokens[distance][part] for distance, part in zip(distances, parts, strict=True)]
    key = [2.0 * tokens[distance + 1][part] for distance, part in zip(distances, parts, strict=True)]
    return torch.cat(query), torch.cat(key)


def pretrain(world: World, config: PretrainConfig, on_step: Callable[[int, float], None]):
    """Train the model from scratch and return (model, tokenizer). Calls ``on_step(step, loss)`` after every step.

    Uses Muon for the layers' matrices and AdamW for all else, with a warm-up, a constant learning rate and a linear
    cool-down, and bf16 autocast over float32 weights where the processor has bf16.
    """
    tokenizer = build_tokenizer(world)
    model = build_model(config, tokenizer)
    seed_reading(model)
    source = TextSource(world, config.seed)
    batches = packed_rows(source, tokenizer, config)
    optimizers = _optimizers(model, config)
    bf16 = has_bf16()
    for step in range(config.steps):
        source.progress = step / config.steps
        left = 1 - source.progress
        scale = min(1.0, (step + 1) / (config.warmup * config.steps), left / config.cooldown)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = config.lr * scale
        ids, labels, positions = next(batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            hidden = model.model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
            trained = labels != IGNORE
            logits = model.lm_head(hidden[trained])
        loss = F.cross_entropy(logits.float(), labels[trained])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        on_step(step, loss.item())
    return model.eval(), tokenizer


def _optimizers(model: Qwen2ForCausalLM, config: PretrainConfig) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices, and AdamW for all other parameters."""
    layers = {id(parameter) for parameter in cast(Any, model.model.layers).parameters() if parameter.ndim == 2}
    matrices = [parameter for parameter in model.parameters() if id(parameter) in layers]
    others = [parameter for parameter in model.parameters() if id(parameter) not in layers]
    decay = config.weight_decay
    return [
        Muon(matrices, lr=config.lr, weight_decay=decay),
        torch.optim.AdamW(others, lr=config.lr, betas=(0.9, 0.95), weight_decay=decay, fused=True),
    ]


def pretrained(world: World, config: PretrainConfig, cache: Path, *, scratch: bool = False) -> tuple[Path, bool]:
    """Return the mini model's checkpoint directory, and whether the model had to be trained.

    A model with the same recipe is taken from ``cache`` or, unless ``scratch`` is true, from the package. Otherwise
    it is trained, with a progress bar, and saved in ``cache``.
    """
    recipe = {"world": asdict(world.config), "pretrain": asdict(config), "text": VERSION}
    recipe = json.loads(json.dumps(recipe))  # tuples become lists, as in the record
    key = settings_hash(recipe, 12)
    target = cache / key
    for directory in (target,) if scratch else (target, SHIPPED / "base"):
        if (directory / RECORD).is_file():
            made_with = json.loads((directory / RECORD).read_text(encoding="utf-8"))
            if all(made_with.get(name) == value for name, value in recipe.items()):
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
    with new_directory(target, replace=True) as unfinished:
        # With the precision of half floats, the file compresses to half of its size.
        model.half().float().save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        record = recipe | {
            "losses": losses,
            "seconds": time.perf_counter() - start,
            "code_version": code_version(),
            "machine": machine(),
            "sha256": sha256(unfinished / "model.safetensors"),
        }
        write_text(unfinished / RECORD, json.dumps(record, indent=1) + "\n")
    return target, True
