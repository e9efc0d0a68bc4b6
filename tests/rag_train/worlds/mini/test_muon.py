"""Muon for the mini model's matrices."""

from __future__ import annotations

import pytest
import torch

from rag_train.worlds.mini.muon import Muon, orthogonalized


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 6, 18), (2, 18, 6)])
def test_singular_values_are_near_1_and_singular_vectors_stay(shape: tuple[int, int, int]):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalized(matrices)
    values = torch.linalg.svdvals(found)
    assert values.max() < 1.3 and values.min() > 0.5
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    between = left.mT @ found @ right.mT
    torch.testing.assert_close(between, torch.diag_embed(between.diagonal(dim1=-2, dim2=-1)), atol=1e-4, rtol=0)


def test_steps_are_those_of_pytorch():
    generator = torch.Generator().manual_seed(1)
    ours, theirs = ([torch.nn.Parameter(torch.ones(6, 18)), torch.nn.Parameter(torch.ones(8, 8))] for _ in range(2))
    optimizers = [
        Muon(ours, lr=0.1, weight_decay=0.02),
        torch.optim.Muon(theirs, lr=0.1, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
    ]
    for _ in range(3):
        for mine, reference in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            reference.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, atol=0.01, rtol=0)  # PyTorch computes in bf16
