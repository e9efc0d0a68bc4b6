"""Failures that end a run, reported in one line with what to change: a loss that is not finite, full memory, full
disk."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather
from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments

from rag_train.errors import OneProcessError, UserError
from rag_train.training.checkpoints import newest_to_continue, step_of
from rag_train.training.plan import savings
from rag_train.training.recipe import TrainRecipe

NO_MEMORY = ("out of memory", "DefaultCPUAllocator", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
NO_SPACE = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "PytorchStreamWriter failed",
    "unexpected pos",
)


class FiniteLossTrainer(Trainer):
    """A trainer on one device that stops if the loss is infinite or NaN, and saves the batch next to the
    checkpoints."""

    def __init__(self, *, args: TrainingArguments, **named: Any):
        # In one process, transformers would spread each batch over all GPUs that it sees (nn.DataParallel).
        args._n_gpu = min(args.n_gpu, 1)
        super().__init__(args=args, **named)

    def training_step(self, model, inputs, num_items_in_batch=None):
        """Raise UserError in every process if the loss of any process is not finite.

        The first process with such a loss writes its batch.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        losses = gather(loss)
        assert isinstance(losses, torch.Tensor) and self.args.output_dir is not None
        bad = (~torch.isfinite(losses.view(-1))).nonzero()[:, 0].tolist()
        if bad:
            step = self.state.global_step + 1
            path = Path(self.args.output_dir) / f"nan-step-{step}.json"
            if bad[0] == self.args.process_index:
                path.write_text(json.dumps(self.readable(inputs), ensure_ascii=False, indent=1))
            raise UserError(
                f"step {step}: the loss is infinite or NaN; lower lr, or set precision=fp32 "
                f"(the batch is in {path})"
            )
        return loss

    def readable(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the tensors of a batch as lists, and its text."""
        batch = {name: value.tolist() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
        tokenizer = self.processing_class
        if isinstance(tokenizer, PreTrainedTokenizerBase) and (ids := batch.get("input_ids")):
            batch["text"] = [tokenizer.decode(row) for row in (ids if isinstance(ids[0], list) else [ids])]
        return batch


@contextmanager
def explain_failures(recipe: TrainRecipe) -> Iterator[None]:
    """Raise OneProcessError in place of the errors of torch, safetensors or the system for full memory or disk."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        text = str(error)
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(sign in text for sign in NO_MEMORY):
            raise OneProcessError(_no_memory(recipe)) from error
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if full or any(sign in text for sign in NO_SPACE):
            raise OneProcessError(_no_space(recipe)) from error
        raise


def _no_memory(recipe: TrainRecipe) -> str:
    settings = [*(text for text, _ in savings(recipe)), "a smaller max_tokens"]
    return (
        f"out of memory with batch_size={recipe.batch_size} and max_tokens={recipe.max_tokens}; set one or more of "
        f"{', '.join(settings)}, or shard the model over more devices (launch/accelerate/zero3.yaml)"
    )


def _no_space(recipe: TrainRecipe) -> str:
    checkpoint = newest_to_continue(Path(recipe.output_dir) / "checkpoints")
    start = f"step {step_of(checkpoint)}" if checkpoint else "the start"
    return (
        f"output_dir {recipe.output_dir}: no space left on its disk; free space and run the same command again, "
        f"which continues from {start}"
    )
