"""The tree layout: sequences with common prefixes in one row, so that every distinct prefix is computed once.

In a chain of calibration, each prompt is a prefix of the next, passages included, and the snippets have a few
tokens. Different questions share at least the instruction. All sequences of a batch are therefore put into a trie,
whose nodes (tokens) form the row in preorder. A token attends only to its ancestors and keeps the position that it
has in its sequence, so that its log-probability is the same as in the sequence alone. The attention is described
by one number per token, the index of the token's last descendant: token j is an ancestor of token i, or i itself,
if and only if j <= i <= last[j].
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from accelerate.utils import extract_model_from_parallel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AttentionInterface, PretrainedConfig
from transformers.integrations.flex_attention import flex_attention_forward

from rag_train.errors import UserError
from rag_train.precision import exact_attention
from rag_train.training.masking import IGNORE
from rag_train.training.processes import say_once
from rag_train.training.rows import Row

SLICED = "tree_slices"
"""Name of `sliced_attention` in transformers."""
SLICE = 128
"""Tokens of a slice in `sliced_attention`, and of a block in FlexAttention."""
IMPLEMENTATIONS = {"flex": "flex_attention", "sliced": SLICED, "sdpa": "sdpa"}
"""Names in transformers of the values of the recipe's key ``attention``."""
SUPPORT = {
    "flex_attention": "_supports_flex_attn",
    SLICED: "_supports_attention_backend",
    "sdpa": "_supports_sdpa",
}
"""How the model classes of transformers say that they have an implementation."""
NO_TREES = "remove sft.pack_tokens, set dpo.layout=pairs or set rl.layout=rollouts"
"""What to do if a model cannot be trained on trees."""

TokenT = TypeVar("TokenT", bound=Hashable)
Tensors = dict[str, torch.Tensor]
"""A row of `labelled_row` as tensors: ``input_ids``, ``positions`` and ``last`` of shape (T,), and for each of N
labels ``at``, ``labels`` and ``owner``."""
Logits = Callable[[Any, Tensors], torch.Tensor]
"""`path_logits`, or another function with its arguments."""


class Slice(NamedTuple):
    """A slice of Q tokens: the indices of the K tokens that any of them attends to, a mask of shape (Q, K), and the
    positions of both."""

    keys: torch.Tensor
    mask: torch.Tensor
    query_positions: torch.Tensor
    key_positions: torch.Tensor

    def within(self, window: int | None) -> torch.Tensor:
        """Return the mask with a sliding window of ``window`` positions."""
        if window is None:
            return self.mask
        return self.mask & (self.query_positions[:, None] - self.key_positions < window)


@dataclass(frozen=True)
class Tree(Generic[TokenT]):
    """A row of T tokens: ids, positions and last descendants, each of length T, and the path of each sequence."""

    ids: list[TokenT]
    positions: list[int]
    last: list[int]
    paths: list[list[int]]


def lay_out(sequences: Sequence[Sequence[TokenT]]) -> Tree[TokenT]:
    """Lay out the trie of ``sequences`` in preorder; ``paths[n][k]`` is the index of token k of sequence n."""
    children: list[dict[TokenT, int]] = [{}]  # by node: the root, then the tokens in order of insertion
    tokens: list[TokenT] = []  # without the root
    depths = [-1]
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
        ids=[tokens[node - 1] for node in order],
        positions=[depths[node] for node in order],
        last=[last[node] for node in order],
        paths=[[place[node] for node in walk] for walk in walks],
    )


def labelled_row(examples: Iterable[tuple[list[int], list[int]]]) -> Row:
    """Lay out examples, each with its token ids and their labels, as one row.

    The row is a `Tree` and, for every token with a label, the index at which it is predicted (``at``), its id
    (``labels``) and the number of its example (``owner``).
    """
    sequences, labels = zip(*examples, strict=True)
    tree = lay_out(sequences)
    trained = [
        (path[k - 1], label, number)
        for number, (path, given) in enumerate(zip(tree.paths, labels, strict=True))
        for k, label in enumerate(given)
        if k and label != IGNORE
    ]
    at, kept, owner = map(list, zip(*trained, strict=True))
    shape = {"input_ids": tree.ids, "positions": tree.positions, "last": tree.last}
    return shape | {"at": at, "labels": kept, "owner": owner}


def tensors(rows: Sequence[dict[str, Any]]) -> Tensors:
    """Collate a batch, which is a single row."""
    [row] = rows
    return {name: torch.tensor(value) for name, value in row.items()}


def attention_mask(last: torch.Tensor, positions: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Return the mask for ``scaled_dot_product_attention``: bool of shape (1, 1, T, T), True for attention.

    With a sliding window, a token attends to itself and to the ``window`` - 1 nearest of its ancestors.
    """
    index = torch.arange(len(last), device=last.device)
    mask = (index[None, :] <= index[:, None]) & (index[:, None] <= last[None, :])
    if window is not None:
        positions = positions.int()
        mask &= positions[:, None] - positions[None, :] < window
    return mask[None, None]


def added_mask(last: torch.Tensor, positions: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Return the same mask as numbers that are added to the attention scores."""
    mask = attention_mask(last, positions, window)
    dtype = torch.get_autocast_dtype(last.device.type) if torch.is_autocast_enabled(last.device.type) else None
    least = torch.finfo(dtype or torch.float32).min
    return torch.where(mask, 0.0, least)


def block_mask(last: torch.Tensor, positions: torch.Tensor, window: int | None = None) -> BlockMask:
    """Return the same mask for FlexAttention, which skips blocks of tokens that do not attend to each other."""
    size = len(last)
    reach = size if window is None else window

    def is_ancestor(batch, head, query, key):
        return (key <= query) & (query <= last[key])

    def is_near(batch, head, query, key):
        return is_ancestor(batch, head, query, key) & (positions[query] - positions[key] < reach)

    mask = is_ancestor if window is None else is_near
    return create_block_mask(mask, None, None, size, size, device=last.device, _compile=last.is_cuda)


def slices(last: torch.Tensor, positions: torch.Tensor) -> list[Slice]:
    """Return the same mask for `sliced_attention`, as slices of ``SLICE`` tokens; the last one may be shorter.

    A token before the slice is an ancestor of a token in the slice only if it is an ancestor of the slice's first
    token. Therefore a slice has at most as many keys as the depth of its first token plus ``SLICE``. Masked keys at
    the front round their number up to a multiple of ``SLICE``, so that few shapes occur.
    """
    index, out = torch.arange(len(last), device=last.device), []
    for first in range(0, len(last), SLICE):
        queries = index[first : first + SLICE]
        ancestors = index[:first][last[:first] >= first]
        padding = -len(ancestors) % SLICE
        keys = torch.cat([ancestors.new_zeros(padding), ancestors, queries])
        mask = (keys <= queries[:, None]) & (queries[:, None] <= last[keys])
        mask[:, :padding] = False
        out.append(Slice(keys, mask, positions[queries], positions[keys]))
    return out


def sliced_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    tree_slices: list[Slice],
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Attention for models of transformers by plain matrix products, with inputs of shape (1, heads, T, size).

    The cost of a row grows with the length of its sequences, not with T. Raises UserError if the model changes the
    attention scores in a way that only FlexAttention supports.
    """
    if any(more.get(name) is not None for name in ("s_aux", "position_bias")):
        raise UserError(
            f"{type(module).__name__}: tree rows of this model need attention=flex and a GPU; without a GPU, "
            f"{NO_TREES}"
        )
    scale, outputs = scaling or query.shape[-1] ** -0.5, []
    for queries, part in zip(query.split(SLICE, 2), tree_slices, strict=True):
        near = key[:, :, part.keys], value[:, :, part.keys]
        outputs.append(_attend(queries, *near, part.within(sliding_window), scale, dropout, softcap))
    return torch.cat(outputs, 2).transpose(1, 2), None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    dropout: float,
    softcap: float | None,
) -> torch.Tensor:
    """Attention of shape (1, heads, queries, size), with one matrix product for all heads of a key-value head.

    On CPUs with bf16 matrix units this is faster than PyTorch's kernel, whose backward pass does not use them.
    """
    shape, groups = query.shape, key.shape[1]
    scores = query.reshape(1, groups, -1, shape[-1]) @ key.transpose(-1, -2)
    scores = scores.view(*shape[:3], -1).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    shares = F.dropout(torch.where(mask, scores, float("-inf")).softmax(-1), dropout).to(value.dtype)
    return (shares.view(1, groups, -1, len(mask[0])) @ value).view(*shape[:3], -1)


AttentionInterface.register(SLICED, sliced_attention)


def attention_for_trees(config: PretrainedConfig, choice: str = "auto") -> str:
    """Return the ``attn_implementation`` for a model that is trained on trees.

    ``choice`` is the recipe's key ``attention``. Raises UserError if it does not work with the model or the device.
    """
    _require_support(config.get_text_config(), choice, bool(exact_attention(config)))
    if choice != "auto":
        if not supports(config, IMPLEMENTATIONS[choice]):
            raise UserError(
                f"attention={choice}: models of type {config.model_type} do not have it; set attention=auto"
            )
        return IMPLEMENTATIONS[choice]
    wanted = "flex_attention" if torch.cuda.is_available() else SLICED
    if not supports(config, wanted):
        return "sdpa" if supports(config, "sdpa") else "eager"
    if wanted == SLICED:
        return SLICED
    try:
        _try_flex_attention(config)
    except Exception as error:  # a compiler's: of any type
        other = "sdpa" if supports(config, "sdpa") else "sliced"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        say_once(f"attention: {other}, because FlexAttention failed here: {reason}")
        return IMPLEMENTATIONS[other]
    return IMPLEMENTATIONS["flex"]


def supports(config: PretrainedConfig, implementation: str) -> bool:
    """Return whether models of this ``config`` have the ``implementation`` and are computed exactly with it."""
    if implementation == "sdpa" and exact_attention(config):
        return False
    model: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)  # pyrefly: ignore[bad-argument-type]
    return model is not None and getattr(model, SUPPORT[implementation])


def _require_support(config: Any, choice: str, capped: bool) -> None:
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"})
    if kinds:
        raise UserError(
            f"model of type {config.model_type}: layers with {kinds[0]} cannot be trained on trees; {NO_TREES}"
        )
    if choice == "flex" and not torch.cuda.is_available():
        raise UserError("attention=flex: FlexAttention trains on GPUs only; set attention=auto, sliced or sdpa")
    if choice == "sdpa" and capped:
        raise UserError("attention=sdpa: the model caps attention scores; set attention=auto, sliced or flex")


def _try_flex_attention(config: PretrainedConfig) -> None:
    """Run FlexAttention forward and backward on a small tree with the model's number and size of heads."""
    text: Any = config.get_text_config()
    heads = text.num_attention_heads
    groups = getattr(text, "num_key_value_heads", None) or heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    last = torch.full((256,), 255, device="cuda")
    query, key, value = (
        torch.ones(1, number, len(last), size, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for number in (heads, groups, groups)
    )
    mask = block_mask(last, torch.arange(len(last), device="cuda"))
    dropout = getattr(text, "attention_dropout", 0.0)
    output, _ = flex_attention_forward(torch.nn.Module(), query, key, value, mask, dropout=dropout)
    output.float().sum().backward()


def padded(row: Tensors) -> Tensors:
    """Return a row filled up to few different lengths, with tokens that attend only to themselves.

    ``at`` is filled with 0. Kernels are compiled and memory is reserved for each length.
    """
    last = row["last"]
    filled = {
        name: F.pad(row[name], (0, few_lengths(len(row[name])) - len(row[name])))
        for name in ("input_ids", "positions", "at")
        if name in row
    }
    alone = torch.arange(len(last), len(filled["input_ids"]), device=last.device)
    return filled | {"last": torch.cat([last, alone])}


def few_lengths(size: int) -> int:
    """Round up to a multiple of ``SLICE`` of which there are at most four per doubling."""
    step = max(SLICE, 2 ** (size.bit_length() - 3))
    return -(-size // step) * step


def forward_arguments(model: torch.nn.Module, row: Tensors) -> dict[str, Any]:
    """Return the arguments of the model's forward pass over a row of `padded`.

    The mask is as the model's attention implementation takes it. Models that have layers with and without a sliding
    window take a mask for either.
    """
    unwrapped: Any = extract_model_from_parallel(model)
    implementation, config = unwrapped.config._attn_implementation, unwrapped.config.get_text_config()
    last, positions = row["last"], row["positions"]
    arguments = {"input_ids": row["input_ids"][None], "position_ids": positions[None], "use_cache": False}
    if implementation == SLICED:
        return arguments | {"tree_slices": slices(last, positions)}
    mask = {"flex_attention": block_mask, "eager": added_mask}.get(implementation, attention_mask)
    window = getattr(config, "sliding_window", None)
    if not (kinds := getattr(config, "layer_types", None)):
        return arguments | {"attention_mask": mask(last, positions, window)}
    windows = {"full_attention": None, "sliding_attention": window}
    masks = {kind: mask(last, positions, windows[kind]) for kind in sorted(set(kinds))}
    return arguments | {"attention_mask": masks}


def path_logits(model: torch.nn.Module, row: Tensors) -> torch.Tensor:
    """Return the logits at the indices ``at`` of a row, of shape (N, vocabulary); no others are computed."""
    filled = padded(row)
    return model(**forward_arguments(model, filled), logits_to_keep=filled["at"]).logits[0, : len(row["at"])]


def separate_logits(model: torch.nn.Module, row: Tensors) -> torch.Tensor:
    """Return the same logits from a padded batch of the row's sequences, for models that cannot compute the row."""
    ids, positions, last, at = (row[name] for name in ("input_ids", "positions", "last", "at"))
    index = torch.arange(len(ids), device=ids.device)
    leaves = index[last == index]
    paths = (index <= leaves[:, None]) & (leaves[:, None] <= last)  # a leaf's ancestors and itself
    owner, token = paths.nonzero().unbind(1)
    batch = ids.new_zeros(len(leaves), int(positions.max()) + 1)
    mask = torch.zeros_like(batch)
    batch[owner, positions[token]], mask[owner, positions[token]] = ids[token], 1
    logits = model(input_ids=batch, attention_mask=mask, use_cache=False).logits
    return logits[paths[:, at].int().argmax(0), positions[at]]


def path_logprobs(model: torch.nn.Module, row: Tensors, logits: Logits = path_logits) -> torch.Tensor:
    """Return the log-probability of each of a row's ``labels``, of shape (N,). The result is differentiable."""
    return torch.log_softmax(logits(model, row).float(), -1).gather(1, row["labels"][:, None])[:, 0]
