"""Which number formats this machine computes fast, and which attention computes what a model's config says."""

from __future__ import annotations

from typing import Any


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


def exact_attention(config: Any) -> dict[str, str]:
    """Return the argument of ``from_pretrained`` without which a model of this config would compute something else.

    By default, transformers takes PyTorch's fused kernel, which cannot cap attention scores and leaves the cap out.
    """
    capped = getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None) is not None
    return {"attn_implementation": "eager"} if capped else {}
