"""Muon (Jordan et al. 2024), for matrices on processors.

PyTorch's own Muon computes in bf16, which takes many times as long where the processor has no instructions for it,
and one matrix at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from rag_train.precision import has_bf16

COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Coefficients of the Newton-Schulz iteration, as Jordan et al. tuned them."""


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay.

    The update has the root mean square of AdamW's updates (Liu et al. 2025, "Muon is scalable for LLM training"),
    so that one learning rate suits both optimizers.
    """

    def __init__(self, matrices: Iterable[torch.Tensor], lr: float, weight_decay: float, momentum: float = 0.95):
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.dtype = torch.bfloat16 if has_bf16() else torch.float32

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyrefly: ignore[bad-override]
        """Update the matrices; those of one shape together."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[torch.Tensor]] = {}
            for matrix in group["params"]:
                by_shape.setdefault(matrix.shape, []).append(matrix)
            for (rows, columns), matrices in by_shape.items():
                gradients = torch.stack([self._with_momentum(matrix, group["momentum"]) for matrix in matrices])
                updates = orthogonalized(gradients.to(self.dtype)).to(gradients.dtype)
                size = group["lr"] * 0.2 * math.sqrt(max(rows, columns))
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=size)

    def _with_momentum(self, matrix: torch.Tensor, momentum: float) -> torch.Tensor:
        assert matrix.grad is not None
        average = self.state[matrix].setdefault("average", torch.zeros_like(matrix))
        average.lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(average, momentum)


def orthogonalized(matrices: torch.Tensor, iterations: int = 5) -> torch.Tensor:
    """Return matrices with nearly the same singular vectors, and singular values near 1 (between 0.7 and 1.2).

    Args:
        matrices: shape (matrices, rows, columns).
        iterations: Newton-Schulz iterations.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalized(matrices.mT, iterations).mT
    a, b, c = COEFFICIENTS
    found = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        square = found @ found.mT
        found = a * found + (b * square + c * square @ square) @ found
    return found
