"""An extension of vLLM's workers: weights are replaced while the engine runs."""

from __future__ import annotations

from typing import Any


class Reload:
    """Methods that vLLM adds to its workers (``worker_extension_cls``)."""

    def load_checkpoint(self: Any, directory: str) -> None:
        """Replace the weights of the worker's model by those of a checkpoint of the same architecture."""
        from vllm.platforms import current_platform

        self.reload_weights(weights_path=directory)
        head = getattr(self.model_runner.get_model(), "lm_head", None)
        if head is not None and current_platform.is_cpu():
            # On CPUs, layers compute with a packed copy of their weights. vLLM 0.32 packs an output layer that is
            # tied to the embeddings only when it starts.
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(head, remove_weight=False)
