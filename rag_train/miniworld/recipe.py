"""Settings of the mini model, without the libraries that train it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PretrainConfig:
    """Architecture and training settings of the mini model."""

    seed: int = 0
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    intermediate_size: int = 384
    initializer_range: float = 0.06
    rope_theta: float = 1e10
    row_tokens: int = 256
    rows: int = 2
    steps: int = 20000
    lr: float = 6e-4
    weight_decay: float = 0.02
    cooldown: float = 0.4
    warmup: float = 0.1
