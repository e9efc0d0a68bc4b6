"""Muon for the mini model's matrices."""

from __future__ import annotations

import torch

from rag_train.worlds.mini.muon import Muon


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
