"""Settings of the mini model, without the libraries that train it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PretrainConfig:
    """Architecture and training settings of the mini model."""

    seed: int = 0
    hidden_size: int = 192
    layers: int = 4
    heads: int = 6
    intermediate_size: int = 576
    initializer_range: float = 0.06
    rope_theta: float = 1e10
    row_tokens: int = 256
    rows: int = 8
    steps: int = 4000
    lr: float = 2e-3
    weight_decay: float = 0.02
    cooldown: float = 0.4
    warmup: float = 0.05
