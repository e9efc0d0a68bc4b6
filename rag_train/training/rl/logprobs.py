"""Log-probabilities of rollouts in the tree layout: every distinct prefix of a batch is computed once.

The rollouts of a question have the question in common, and often the first subqueries and their passages, or
everything: a trained controller samples the same transcript many times.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from rag_train.training.masking import IGNORE
from rag_train.training.tree import Tree, forward_arguments, lay_out, padded


def labelled_tree(rows: Sequence[Sequence[int]], completions: Sequence[int]) -> Tree[tuple[int, int]]:
    """Lay out rows of token ids as a tree of tokens with labels.

    A token's label is the next token of its row, or ``IGNORE`` if that is not one of the last ``completions[n]``
    tokens of row n. A position has one label. Rows that go on with different tokens therefore share the tokens of
    their common prefix but the last.
    """
    labels = (
        [IGNORE] * (len(row) - size - 1) + [*row[len(row) - size :], IGNORE]
        for row, size in zip(rows, completions, strict=True)
    )
    return lay_out([list(zip(row, after, strict=True)) for row, after in zip(rows, labels, strict=True)])


def tree_logprobs(
    model: torch.nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor, columns: int
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return log-probability and entropy of each token of the completions, and the auxiliary loss of experts.

    Args:
        model: a model with TRL's fused head, whose attention is that of trees.
        input_ids: prompts and completions, shape (B, T), padded on the left and on the right.
        attention_mask: 0 for padding, shape (B, T).
        columns: number C of the columns that belong to completions.

    Returns:
        Log-probabilities and entropies, shape (B, C), 0 at padding. Entropies or auxiliary loss are None if the
        head or the model does not compute them.
    """
    rows = [ids[mask].tolist() for ids, mask in zip(input_ids, attention_mask.bool(), strict=True)]
    completed = attention_mask[:, -columns:]
    sizes = completed.sum(1).tolist()
    tree = labelled_tree(rows, sizes)
    ids, labels = torch.tensor(tree.ids, device=input_ids.device).unbind(1)
    positions, last = (torch.tensor(values, device=input_ids.device) for values in (tree.positions, tree.last))
    row = padded({"input_ids": ids, "positions": positions, "last": last})
    labels = F.pad(labels, (0, len(row["last"]) - len(labels)), value=IGNORE)
    outputs = model(**forward_arguments(model, row), shift_labels=labels[None], fused_lm_head=True)
    at = torch.zeros_like(completed)  # the index at which each token is predicted
    for n, (path, size) in enumerate(zip(tree.paths, sizes, strict=True)):
        at[n, :size] = at.new_tensor(path[len(path) - size - 1 : -1])
    logprobs, entropies = (
        None if values is None else values[0][at] * completed for values in (outputs.log_probs, outputs.entropy)
    )
    assert logprobs is not None
    return logprobs, entropies, outputs.aux_loss
