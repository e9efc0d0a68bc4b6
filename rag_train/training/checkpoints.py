"""Checkpoints: which of them are complete, so that a run that is killed at any moment can continue."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from accelerate import PartialState
from transformers import TrainerCallback

from rag_train.files import write_text

COMPLETE = "complete.json"


def newest_complete(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint that all processes finished writing and whose files are all intact."""
    complete = [checkpoint for checkpoint in checkpoints.glob("checkpoint-*") if _is_complete(checkpoint)]
    return max(complete, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step at which a checkpoint was written."""
    return int(checkpoint.name.rpartition("-")[2])


def remove_torn(checkpoints: Path) -> None:
    """Delete incomplete checkpoints, which take up space and count towards the number of checkpoints to keep."""
    for checkpoint in checkpoints.glob("checkpoint-*"):
        if not _is_complete(checkpoint):
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
            files = [path for path in checkpoint.rglob("*") if path.is_file()]
            sizes = {str(file.relative_to(checkpoint)): file.stat().st_size for file in files}
            write_text(checkpoint / COMPLETE, json.dumps(sizes))
