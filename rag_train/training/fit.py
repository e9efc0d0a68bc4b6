"""The steps of a run, and its metrics: the progress bar, ``metrics.jsonl``, and Weights & Biases or TensorBoard."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback, WandbCallback

from rag_train.errors import UserError
from rag_train.jobs.files import placed, write_text
from rag_train.progress import progress
from rag_train.training.checkpoints import MarkComplete, step_of
from rag_train.training.recipe import TrainRecipe
from rag_train.training.result import METRICS
from rag_train.training.validation import Validation

WANDB_ID = "wandb_run_id"


def fit(trainer: Trainer, recipe: TrainRecipe, identity: dict[str, Any], checkpoint: Path | None) -> float:
    """Train from the beginning or from ``checkpoint``, and return the seconds that it took."""
    trainer.add_callback(MarkComplete())
    trainer.add_callback(Validation(recipe))
    start = time.perf_counter()
    with tracked(trainer, recipe, identity, step_of(checkpoint)):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return time.perf_counter() - start


@contextmanager
def tracked(trainer: Trainer, recipe: TrainRecipe, identity: dict[str, Any], step: int) -> Iterator[None]:
    """Show and write the metrics that ``trainer`` logs after ``step`` inside the context, in the first process.

    ``identity`` (the recipe and the hashes of data and model) becomes the configuration of the W&B run. A resumed
    run continues the same W&B run, whose id is kept in ``output_dir/wandb_run_id``. WANDB_MODE=offline needs no
    account. Raises UserError if W&B refuses the run.
    """
    output_dir = Path(recipe.output_dir)
    with ExitStack() as stack:
        if PartialState().is_main_process:
            trainer.add_callback(MetricsFile(output_dir / METRICS, step))
            if recipe.report_to == "wandb":
                stack.enter_context(_wandb_run(output_dir, identity))
                trainer.add_callback(WandbCallback())
            if recipe.report_to == "tensorboard":
                from torch.utils.tensorboard import SummaryWriter

                writer = SummaryWriter(str(output_dir / "tensorboard"), purge_step=step + 1 if step else None)
                stack.enter_context(writer)
                trainer.add_callback(TensorBoardCallback(writer))
        trainer.add_callback(ProgressBar(recipe.stage, stack))
        yield


@contextmanager
def _wandb_run(output_dir: Path, identity: dict[str, Any]) -> Iterator[None]:
    import wandb

    file = output_dir / WANDB_ID
    try:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rag-train"),
            id=file.read_text().strip() if file.exists() else None,
            resume="allow",
            dir=output_dir,
            config=identity,
        )
    except (wandb.Error, TimeoutError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"report_to=wandb: {reason}; run `wandb login`, or set WANDB_MODE=offline") from error
    file.write_text(run.id + "\n")
    with run:
        yield


class MetricsFile(TrainerCallback):
    """Appends a JSON object for each logged step: its ``step`` and all metrics by name.

    ``loss`` is in nats per trained token (sft) or per pair (dpo), ``rewards/margins`` in nats times beta,
    ``train_runtime`` in seconds.
    """

    def __init__(self, path: Path, step: int):
        """Drop the rows of a killed process that are later than ``step``; the resumed run logs them again."""
        self._path = path
        lines = path.read_text().splitlines(keepends=True) if step and path.exists() else []
        write_text(path, "".join(line for line in lines if _step(line) <= step))

    def on_log(self, args, state, control, logs=None, **kwargs):
        with placed(self._path), self._path.open("a") as file:
            file.write(json.dumps({"step": state.global_step} | (logs or {})) + "\n")


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except ValueError:  # an incomplete last line
        return float("inf")


class ProgressBar(TrainerCallback):
    """Steps, rate, time left and loss, shown by the first process; closing ``stack`` ends the bar."""

    def __init__(self, stage: str, stack: ExitStack):
        self._stage, self._stack = stage, stack

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            bar = progress(self._stage, total=state.max_steps, done=state.global_step)
            self._advance = self._stack.enter_context(bar)

    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            self._advance()

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and logs and "loss" in logs:
            self._advance(0, f"loss {float(logs['loss']):.4f}")
