"""Checkpoints: which of them are complete, so that a run that is killed at any moment can continue.

The newest complete checkpoint is kept, with the states that training continues from, and of the best one
(``keep: best``) the weights. With ``save_only_model`` no checkpoint has these states.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from accelerate import PartialState
from transformers import TrainerCallback

from rag_train.jobs.files import write_text

COMPLETE = "complete.json"
RANDOM = "rng_state*"
STATES = (RANDOM, "optimizer*", "scheduler.pt", "global_step*", "latest", "zero_to_fp32.py", "pytorch_model_fsdp*")
"""Names of what transformers, DeepSpeed and FSDP write to continue from a checkpoint, in addition to the model."""


def newest_complete(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint that all processes finished writing and whose files are all intact."""
    return max(filter(_is_complete, checkpoints.glob("checkpoint-*")), key=step_of, default=None)


def newest_to_continue(checkpoints: Path) -> Path | None:
    """Return the newest complete checkpoint from which training can continue: it has more than the weights."""
    complete = filter(_is_complete, checkpoints.glob("checkpoint-*"))
    return max((each for each in complete if any(each.glob(RANDOM))), key=step_of, default=None)


def step_of(checkpoint: Path | None) -> int:
    """Return the optimizer step at which a checkpoint was written; 0 without one."""
    return int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0


def remove_unused(checkpoints: Path, start: Path | None) -> None:
    """Delete the checkpoints that a run does not need which continues from ``start``: incomplete and later ones."""
    for checkpoint in checkpoints.glob("checkpoint-*"):
        if start is None or step_of(checkpoint) > step_of(start) or not _is_complete(checkpoint):
            shutil.rmtree(checkpoint)


def _is_complete(checkpoint: Path) -> bool:
    try:
        sizes = dict(json.loads((checkpoint / COMPLETE).read_text()))
        return bool(sizes) and all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, TypeError):
        return False


class MarkComplete(TrainerCallback):
    """Writes ``complete.json``, the sizes of a checkpoint's files, after all processes have written their files.

    Metrics are also logged at every checkpoint: the averages of the loss start again there, so that a resumed run
    logs the same values as an uninterrupted run.
    """

    def on_step_end(self, args, state, control, **kwargs):
        control.should_log |= control.should_save

    def on_save(self, args, state, control, **kwargs):
        PartialState().wait_for_everyone()
        if state.is_world_process_zero:
            assert args.output_dir is not None
            checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            _mark(checkpoint)
            for other in set(checkpoint.parent.glob("checkpoint-*")) - {checkpoint}:
                if step_of(other) == state.best_global_step:
                    _keep_weights(other)
                else:
                    shutil.rmtree(other)


def _mark(checkpoint: Path, without: Collection[str] = ()) -> None:
    """Write the marker of a checkpoint, after its files are on the disk: earlier checkpoints are deleted next."""
    sizes = {}
    for path in checkpoint.rglob("*"):
        name = path.relative_to(checkpoint)
        if path.is_file() and name.parts[0] not in {COMPLETE, *without}:
            with path.open("rb") as file:
                os.fsync(file.fileno())
            sizes[str(name)] = path.stat().st_size
    write_text(checkpoint / COMPLETE, json.dumps(sizes))


def _keep_weights(checkpoint: Path) -> None:
    """Delete all of a checkpoint but the model. It is complete at every moment."""
    states = [path for pattern in STATES for path in checkpoint.glob(pattern)]
    _mark(checkpoint, [path.name for path in states])
    for path in states:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
