"""Which number formats this machine computes fast."""

from __future__ import annotations


def has_bf16() -> bool:
    """Return whether the GPU, or without one the processor, has instructions for bf16.

    Without them, PyTorch computes in bf16 on processors, but many times slower than in fp32.
    """
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.accelerator.is_available():
        return True
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def fast_dtype(dtype: str) -> str:
    """Return ``dtype``, the number format of an engine's weights, with float32 for ``auto`` where bf16 is slow."""
    import torch

    slow = dtype == "auto" and not torch.accelerator.is_available() and not has_bf16()
    return "float32" if slow else dtype
