"""Training of controllers: masked SFT, calibration (DPO) on trees or pairs, and reinforcement learning."""

import os

# Batches differ in size, and PyTorch reserves a block of a GPU's memory for each size, unless segments can grow.
# For packed rows on an H200 (two layers as wide as Qwen2.5-7B), 11.9 GB were reserved for 6.8 GB in use, and 7.6 GB
# with growing segments.
if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name of the same variable
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
