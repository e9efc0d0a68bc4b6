"""Accelerators by name, for plans of trainings and of engines on machines that are not here.

Peaks and bandwidths are those of the manufacturers' data sheets: dense bf16 matrix products with fp32 sums (sheets
that state twice as much count sparse matrices), and reads from the device's memory, of SXM modules where there are
some.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_train.errors import UserError

UTILISATION = 0.3
"""Assumed share of the peak in training, without the operations of attention (`rag_train.training.plan`).

It is from torchtitan, Llama 3.1 8B in bf16 on 8 H100, FSDP2, selective checkpointing: 5,762 tokens a second on
each GPU, 6,667 with torch.compile (github.com/pytorch/torchtitan at 31a17bf, table 1 of
benchmarks/llama3_h100_202412_torchtitan.md). With 6 operations for a token and each of 7.5 billion weights, without
the embeddings, these are 0.26 and 0.30 of 989 TFLOP/s. The page itself states 0.33 and 0.39, which count attention,
and says that the GPUs were limited to 500 W.
"""


@dataclass(frozen=True)
class Device:
    """An accelerator: bytes of memory, peak operations per second in bf16, and bytes per second from memory."""

    name: str
    memory: float
    peak: float
    bandwidth: float


DEVICES = {
    device.name.lower(): device
    for device in (
        Device("H200", 141e9, 989e12, 4.8e12),
        Device("H100", 80e9, 989e12, 3.35e12),
        Device("A100", 80e9, 312e12, 2.039e12),
        Device("L40S", 48e9, 362e12, 0.864e12),
        Device("L4", 24e9, 121e12, 0.3e12),
    )
}


def find_device(name: str) -> Device:
    """Return the device ``name``. Raises UserError if it is not in the table."""
    if device := DEVICES.get(name.lower()):
        return device
    raise UserError(f"--device {name[:80]}: not in the table; give {', '.join(DEVICES)}")


def device_called(name: str) -> Device | None:
    """Return the device that a driver's name, such as "NVIDIA H100 80GB HBM3", stands for; None if unknown."""
    words = name.upper().replace("-", " ").split()
    return next((device for device in DEVICES.values() if device.name in words), None)


def engine_seconds(device: Device, parameters: int, read: int, written: int, sequences: int) -> float:
    """Return the time of an engine on ``device`` for tokens ``read`` and ``written``, with weights in bf16.

    Reading is bound by operations, 2 for each token and parameter, at `UTILISATION` of the peak. Writing is bound
    by them or by the weights, which are read from memory once for a token of each of the ``sequences`` in flight.
    """
    operations = 2.0 * parameters / (device.peak * UTILISATION)
    weights = 2.0 * parameters / (device.bandwidth * sequences)
    return operations * read + max(operations, weights) * written
