"""The tree layout: sequences with common prefixes in one row, so that every distinct prefix is computed once.

In a chain of calibration, each prompt is a prefix of the next, passages included, and the snippets have a few
tokens. Different questions share at least the instruction. All sequences of a batch are therefore put into a trie,
whose nodes (tokens) form the row in preorder. A token attends only to its ancestors and keeps the position that it
has in its sequence, so that its log-probability is the same as in the sequence alone. The attention is described
by one number per token, the index of the token's last descendant: token j is an ancestor of token i, or i itself,
if and only if j <= i <= last[j].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import extract_model_from_parallel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import AttentionInterface

from rag_train.errors import UserError

SLICED = "tree_slices"
"""Name of `sliced_attention` in transformers."""
SLICE = 128
"""Tokens of a slice in `sliced_attention`. Rows are padded to a multiple of it, because new shapes cost memory and
compiled kernels."""


@dataclass(frozen=True)
class Tree:
    """A row of T tokens: ids, positions and last descendants, each of length T, and the path of each sequence."""

    ids: list[int]
    positions: list[int]
    last: list[int]
    paths: list[list[int]]


def lay_out(sequences: Sequence[Sequence[int]]) -> Tree:
    """Lay out the trie of ``sequences`` in preorder; ``paths[n][k]`` is the index of token k of sequence n."""
    children: list[dict[int, int]] = [{}]  # by node: the root, then the tokens in order of insertion
    tokens, depths = [-1], [-1]
    walks = []
    for sequence in sequences:
        node, walk = 0, []
        for token in sequence:
            if token not in children[node]:
                children[node][token] = len(children)
                children.append({})
                tokens.append(token)
                depths.append(depths[node] + 1)
            node = children[node][token]
            walk.append(node)
        walks.append(walk)
    order: list[int] = []
    last = [0] * len(children)
    stack = [(child, False) for child in reversed(children[0].values())]
    place = [0] * len(children)
    while stack:
        node, left = stack.pop()
        if left:
            last[node] = len(order) - 1
            continue
        place[node] = len(order)
        order.append(node)
        stack.append((node, True))
        stack += [(child, False) for child in reversed(children[node].values())]
    return Tree(
        ids=[tokens[node] for node in order],
        positions=[depths[node] for node in order],
        last=[last[node] for node in order],
        paths=[[place[node] for node in walk] for walk in walks],
    )


def attention_mask(last: torch.Tensor) -> torch.Tensor:
    """Return the mask for ``scaled_dot_product_attention``: bool of shape (1, 1, T, T), True for attention."""
    index = torch.arange(len(last), device=last.device)
    return ((index[None, :] <= index[:, None]) & (index[:, None] <= last[None, :]))[None, None]


def block_mask(last: torch.Tensor) -> BlockMask:
    """Return the same mask for FlexAttention, which skips blocks of tokens that do not attend to each other."""

    def is_ancestor(batch, head, query, key):
        return (key <= query) & (query <= last[key])

    size = len(last)
    return create_block_mask(is_ancestor, None, None, size, size, device=last.device, _compile=last.is_cuda)


def slices(last: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the same mask for `sliced_attention`, as (keys, mask) of each slice of ``SLICE`` tokens.

    ``keys`` are the indices of the K tokens that any token of the slice attends to; ``mask`` is bool of shape
    (``SLICE``, K). The last slice may be shorter.

    A token before the slice is an ancestor of a token in the slice only if it is an ancestor of the slice's first
    token. Therefore K is at most the depth of the first token plus ``SLICE``. Masked keys at the front round it up
    to a multiple of ``SLICE``.
    """
    index, out = torch.arange(len(last), device=last.device), []
    for first in range(0, len(last), SLICE):
        queries = index[first : first + SLICE]
        ancestors = index[:first][last[:first] >= first]
        padding = -len(ancestors) % SLICE
        keys = torch.cat([ancestors.new_zeros(padding), ancestors, queries])
        mask = (keys <= queries[:, None]) & (queries[:, None] <= last[keys])
        mask[:, :padding] = False
        out.append((keys, mask))
    return out


def sliced_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    tree_slices: list[tuple[torch.Tensor, torch.Tensor]],
    scaling: float | None = None,
    dropout: float = 0.0,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for models of transformers without a GPU, with inputs of shape (1, heads, T, size).

    The cost of a row grows with the length of its sequences, not with T. Raises UserError if the model changes the
    attention scores, which only FlexAttention supports.
    """
    if any(more.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise UserError(
            f"{type(module).__name__}: tree rows of this model need FlexAttention and a GPU; without a GPU, remove "
            "sft.pack_tokens or set dpo.layout=pairs"
        )
    outputs = [
        _attend(queries, key[:, :, keys], value[:, :, keys], mask, scaling or query.shape[-1] ** -0.5, dropout)
        for queries, (keys, mask) in zip(query.split(SLICE, 2), tree_slices, strict=True)
    ]
    return torch.cat(outputs, 2).transpose(1, 2), None


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float, dropout: float
) -> torch.Tensor:
    """Attention of shape (1, heads, queries, size), with one matrix product for all heads of a key-value head.

    On CPUs with bf16 matrix units this is faster than PyTorch's kernel, whose backward pass does not use them.
    """
    shape, groups = query.shape, key.shape[1]
    scores = query.reshape(1, groups, -1, shape[-1]) @ key.transpose(-1, -2)
    scores = torch.where(mask, scores.view(*shape[:3], -1).float() * scale, float("-inf"))
    shares = F.dropout(scores.softmax(-1), dropout).to(value.dtype)
    return (shares.view(1, groups, -1, len(mask[0])) @ value).view(*shape[:3], -1)


AttentionInterface.register(SLICED, sliced_attention)


def attention_for_trees() -> str:
    """Return the ``attn_implementation`` for a model that is trained on trees."""
    return "flex_attention" if torch.cuda.is_available() else SLICED


def _attention(model: torch.nn.Module, last: torch.Tensor) -> dict[str, Any]:
    """Return the mask argument that the model's attention implementation takes."""
    unwrapped: Any = extract_model_from_parallel(model)
    implementation = unwrapped.config._attn_implementation
    if implementation == SLICED:
        return {"tree_slices": slices(last)}
    return {"attention_mask": block_mask(last) if implementation == "flex_attention" else attention_mask(last)}


def path_logprobs(
    model: torch.nn.Module,
    ids: torch.Tensor,
    positions: torch.Tensor,
    last: torch.Tensor,
    at: torch.Tensor,
    targets: torch.Tensor,
) -> torch.Tensor:
    """Return the log-probability of each of ``targets``, predicted at the index ``at``; all three have shape (N,).

    ``ids``, ``positions`` and ``last`` are those of a `Tree`, of shape (T,). Logits are computed only at the
    indices ``at``. The result is differentiable.
    """
    padding = -len(ids) % SLICE
    ids, positions = F.pad(ids, (0, padding)), F.pad(positions, (0, padding))
    # A padding token is its own last descendant: it attends only to itself, and no other token attends to it.
    last = torch.cat([last, torch.arange(len(last), len(ids), device=last.device)])
    logits = model(
        input_ids=ids[None],
        position_ids=positions[None],
        **_attention(model, last),
        logits_to_keep=at,
        use_cache=False,
    ).logits[0]
    return torch.log_softmax(logits.float(), -1).gather(1, targets[:, None])[:, 0]
