"""Validation: loss and accuracy on held-out examples during training, the best checkpoint, and early stopping."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import TrainerCallback

from rag_train.errors import UserError
from rag_train.training.failures import FiniteLossTrainer
from rag_train.training.recipe import TrainRecipe


def validation_arguments(recipe: TrainRecipe) -> dict[str, Any]:
    """Return the arguments of transformers for the recipe's validation; none without ``eval_data``."""
    if recipe.eval_data is None:
        return {}
    arguments: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": recipe.eval_steps,
        "per_device_eval_batch_size": recipe.batch_size,
    }
    if recipe.keep == "best":  # transformers then finds the best step, and never deletes its checkpoint
        arguments |= {"metric_for_best_model": recipe.criterion, "greater_is_better": recipe.stage == "dpo"}
    return arguments


class HeldOutTrainer(FiniteLossTrainer):
    """A trainer whose evaluation adds up examples, so that its figures do not depend on batches or processes."""

    def held_out(self, model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss, the correct predictions and all predictions of each example, of shape (examples, 3).

        Two more columns are another term of the loss, and the number of tokens over which it is averaged.
        """
        raise NotImplementedError

    @torch.no_grad()
    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Log ``eval_loss``, a mean over all predictions, and ``eval_accuracy``, the share of correct ones.

        Raises UserError if the loss is infinite or NaN.
        """
        model: Any = self.model_wrapped
        model.eval()
        examples: list[Any] = [
            self.accelerator.gather_for_metrics(self.held_out(model, self._prepare_inputs(inputs)).double())
            for inputs in self.get_eval_dataloader()
        ]
        loss, right, count, *term = torch.cat(examples).sum(0).tolist()
        loss = loss / count + (term[0] / term[1] if term else 0.0)
        metrics = {"eval_loss": loss, "eval_accuracy": right / count}
        if not math.isfinite(loss):
            raise UserError(
                f"step {self.state.global_step}: the loss on eval_data is infinite or NaN; lower lr, or set "
                "precision=fp32"
            )
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


class Validation(TrainerCallback):
    """Saves a checkpoint at every new best evaluation (``keep: best``), and stops when ``patience`` is exhausted.

    Both follow from the logged evaluations, which a resumed run has too.
    """

    def __init__(self, recipe: TrainRecipe):
        self._recipe = recipe

    def on_step_end(self, args, state, control, **kwargs):
        control.should_log |= control.should_evaluate  # averages start again, as at every checkpoint

    def on_evaluate(self, args, state, control, **kwargs):
        criterion, best = self._recipe.criterion, max if self._recipe.stage == "dpo" else min
        values = [entry[criterion] for entry in state.log_history if criterion in entry]
        since = len(values) - 1 - values.index(best(values))
        if self._recipe.keep == "best" and not since:
            control.should_save = True
        if self._recipe.patience and since >= self._recipe.patience:
            control.should_training_stop = True
            control.should_save = False  # a run that is killed from here on stops here again
