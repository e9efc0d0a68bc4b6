"""The devices that PyTorch computes on."""

from __future__ import annotations

from rag_train.selftest.registry import part
from rag_train.selftest.work import Work

SIZE = 512
"""Rows and columns of the matrices that are multiplied."""


@part("PyTorch", short=True)
def pytorch(work: Work) -> str:
    """Multiply matrices on each device, and compare with the product in fp64 on the processor."""
    import torch

    from rag_train.precision import has_bf16

    one, other = torch.randn(2, SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    product = one @ other
    for device in [f"cuda:{i}" for i in range(work.gpus)] or ["cpu"]:
        for dtype, most in ((torch.float32, 1e-2), (torch.bfloat16, 1.0)):
            got = one.to(device, dtype) @ other.to(device, dtype)
            far = (got.double().cpu() - product).abs().max().item()
            assert far < most, f"{device}: a product in {dtype} is off by {far:.2g}"
    names = [torch.cuda.get_device_name(i) for i in range(work.gpus)] or ["the processor"]
    counted = [f"{names.count(name)} × {name}" if work.gpus else name for name in dict.fromkeys(names)]
    return f"PyTorch {torch.__version__}, {', '.join(counted)}{', bf16' * has_bf16()}"
