"""Stage I, imitation learning (DeepRAG, section 3.3): fine-tuning on the text that the controller writes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import Trainer
from trl import SFTConfig, SFTTrainer

from rag_train.training.packing import pack_rows
from rag_train.training.probe import RowsTrainer
from rag_train.training.recipe import TrainRecipe
from rag_train.training.rows import LazyRows, Row
from rag_train.training.setup import parts_for_trl, trainer_arguments, tree_parts
from rag_train.training.tree import labelled_row
from rag_train.training.validation import HeldOutTrainer


class WeightedTrainer(HeldOutTrainer):
    """A trainer whose loss is averaged over the trained tokens of an optimizer step, or over its examples.

    Either mean is over all batches and processes of the step, so that it does not depend on how they divide it.
    """

    def __init__(self, weight: Literal["example", "token"], **arguments: Any):
        super().__init__(**arguments)
        self.by_example = weight == "example"

    def examples(self, inputs: dict[str, torch.Tensor]) -> int:
        """Return the number of examples in a batch."""
        return len(inputs["labels"])

    def _get_num_items_in_batch(self, batch_samples, device):
        if self.by_example:  # one label for each example, in place of those of its tokens
            labels = [torch.zeros(self.examples(inputs)) for inputs in batch_samples]
            batch_samples = [{"labels": each, "shift_labels": each} for each in labels]
        return super()._get_num_items_in_batch(batch_samples, device)

    def figures(self, loss: torch.Tensor, right: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        """Return the columns of `HeldOutTrainer.held_out` from the sums over the trained tokens of each example."""
        if not self.by_example:
            return torch.stack([loss, right, count], 1)
        ones = torch.ones_like(loss)
        return torch.stack([0 * loss, right.to(loss), count.to(loss), loss / count, ones], 1)


class ImitationTrainer(WeightedTrainer, SFTTrainer):
    """TRL's SFTTrainer over rows of ``input_ids`` and ``labels``, padded to the longest row of a batch.

    The loss of a trajectory of n steps is

        L = - sum_{1<=i<=n} [ log Pr(q_i | s_{i-1}) + log Pr(a_i | s_{i-1}, q_i, d_i) ]

    with subquery q_i (and the decision written after it), answer a_i and documents d_i, which are masked. The
    paper prints log [Pr + Pr]; a sum of two probabilities is not a likelihood of the text, so we read it as a
    misprint.
    """

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        forward = partial(_mean_by_example, model) if self.by_example else model
        return super().compute_loss(forward, inputs, return_outputs, num_items_in_batch)

    def held_out(self, model, inputs):
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        columns = (-outputs.log_probs, outputs.is_top1, outputs.label_mask)
        return self.figures(*(column.double().sum(1) for column in columns))


def _mean_by_example(model: Any, **inputs: Any) -> Any:
    """Return the outputs of TRL's fused head, log-probabilities divided by the number of the example's tokens."""
    outputs = model(**inputs)
    outputs.log_probs = outputs.log_probs / outputs.label_mask.sum(1, keepdim=True)
    return outputs


class LabelTrainer(WeightedTrainer):
    """The loss of `ImitationTrainer` from the logits at each label."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self.model_accepts_loss_kwargs = True  # `compute_loss` divides by the number of labels of the whole step
        self._loss_shifts_labels = False  # all labels count, the first as well

    def scored(
        self, model: Any, inputs: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the logits at each of N labels, of shape (N, vocabulary), the labels, and the numbers of their
        examples in the batch."""
        raise NotImplementedError

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        assert num_items_in_batch is not None
        logits, labels, owner = self.scored(model, inputs)
        losses = F.cross_entropy(logits.float(), labels, reduction="none")
        if self.by_example:
            losses = losses / owner.bincount()[owner]
        # Gradients are averaged over the processes, so the mean is multiplied by their number.
        loss = losses.sum() / num_items_in_batch * self.accelerator.num_processes
        return (loss, logits) if return_outputs else loss

    def held_out(self, model, inputs):
        logits, labels, owner = self.scored(model, inputs)
        losses, right = F.cross_entropy(logits.float(), labels, reduction="none"), logits.argmax(-1) == labels
        counts = owner.bincount().double()
        loss, right = (torch.zeros_like(counts).index_add(0, owner, each.double()) for each in (losses, right))
        return self.figures(loss, right, counts)


class PackedTrainer(LabelTrainer, RowsTrainer):
    """A `LabelTrainer` over rows of `packed_rows`, one row per forward pass.

    Every distinct prefix of a row is computed once, and no token attends to a token of another example.
    """

    def examples(self, inputs):
        return int(inputs["owner"].max()) + 1

    def scored(self, model, inputs):
        return self.logits(model, inputs), inputs["labels"], inputs["owner"]

    def held_out(self, model, inputs):
        return super().held_out(model, inputs).sum(0, keepdim=True)  # a row counts as one where rows are gathered


def packed_rows(rows: Dataset, budget: int, seed: int) -> LazyRows:
    """Pack rows of `sft_rows` into rows of at most ``budget`` tokens (see `pack`), laid out when they are read."""
    members = pack_rows(rows, budget, seed)

    def row(number: int) -> Row:
        examples = (rows[i] for i in members[number])
        return labelled_row((example["input_ids"], example["labels"]) for example in examples)

    return LazyRows(len(members), row)


def sft_trainer(recipe: TrainRecipe, checkpoints: Path, **data: Any) -> Trainer:
    """Return the trainer of Stage I, its model loaded, for the ``data`` of `build_trainer`: rows of `sft_rows`."""
    assert recipe.sft is not None
    weight = recipe.sft.weight
    if budget := recipe.pack_tokens:
        for name in ("train_dataset", "eval_dataset"):
            data[name] = data[name] and packed_rows(data[name], budget, recipe.seed)
        return PackedTrainer(weight=weight, **tree_parts(recipe, checkpoints), **data)
    args = SFTConfig(**trainer_arguments(recipe, checkpoints), dataset_kwargs={"skip_prepare_dataset": True})
    return ImitationTrainer(weight=weight, **parts_for_trl(recipe, args), **data)
