"""Sequences that begin alike, laid out as one: every distinct prefix is computed once.

The prompts of a chain of calibration are prefixes of one another, passages included, and its snippets a few tokens;
other questions share at least the instruction. So all sequences of a batch are put into a trie, written down in
preorder. A token attends to its ancestors only and has the position it would have had, so its log-probability is
that of the sequence by itself. One number a token says all there is to say about attention: the index of its last
descendant. Token j is an ancestor of i, or i itself, if and only if j <= i <= last[j].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tree:
    """Token ids, positions and last descendants, each of length T; and the path of each sequence through them."""

    ids: list[int]
    positions: list[int]
    last: list[int]
    paths: list[list[int]]


def lay_out(sequences: Sequence[Sequence[int]]) -> Tree:
    """The trie of ``sequences`` in preorder; ``paths[n][k]`` is where token k of sequence n went."""
    children: list[dict[int, int]] = [{}]  # of the root and then of each node, in order of insertion
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
    """What each token may attend to, for ``scaled_dot_product_attention``: bool, of shape (1, 1, T, T)."""
    index = torch.arange(len(last), device=last.device)
    return ((index[None, :] <= index[:, None]) & (index[:, None] <= last[None, :]))[None, None]


def path_logprobs(
    model: torch.nn.Module,
    ids: torch.Tensor,
    positions: torch.Tensor,
    last: torch.Tensor,
    at: torch.Tensor,
    targets: torch.Tensor,
) -> torch.Tensor:
    """Log-probability of each of ``targets`` after the token at the index ``at`` beside it, both of shape (N,).

    ``ids``, ``positions`` and ``last`` are a `Tree`'s, of shape (T,). Logits are computed at ``at`` only. Gradients
    flow.
    """
    logits = model(
        input_ids=ids[None],
        position_ids=positions[None],
        attention_mask=attention_mask(last),
        logits_to_keep=at,
        use_cache=False,
    ).logits[0]
    return torch.log_softmax(logits.float(), -1).gather(1, targets[:, None])[:, 0]
