"""Stage I, imitation learning (DeepRAG, section 3.3): fine-tuning on the text that the controller writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, Trainer, default_data_collator
from trl import SFTConfig, SFTTrainer

from rag_train.training.masking import IGNORE
from rag_train.training.packing import pack_rows
from rag_train.training.probe import RowsTrainer
from rag_train.training.recipe import TrainRecipe
from rag_train.training.rows import LazyRows, Row, Rows
from rag_train.training.setup import starting_point, trainer_arguments, tree_parts
from rag_train.training.tree import lay_out, path_logprobs
from rag_train.training.validation import HeldOutTrainer


class ImitationTrainer(HeldOutTrainer, SFTTrainer):
    """TRL's SFTTrainer over rows of ``input_ids`` and ``labels``, padded to the longest row of a batch.

    The loss of a trajectory of n steps is

        L = - sum_{1<=i<=n} [ log Pr(q_i | s_{i-1}) + log Pr(a_i | s_{i-1}, q_i, d_i) ]

    with subquery q_i (and the decision written after it), answer a_i and documents d_i, which are masked. The
    paper prints log [Pr + Pr]; a sum of two probabilities is not a likelihood of the text, so we read it as a
    misprint. The loss is averaged over the trained tokens of an optimizer step, so that all tokens have the same
    weight for any batch size per device and any gradient accumulation.
    """

    def held_out(self, model, inputs):
        outputs = model(**inputs, use_cache=False, fused_lm_head=True)
        columns = (-outputs.log_probs, outputs.is_top1, outputs.label_mask)
        return torch.stack([column.double().sum(1) for column in columns], 1)


class PackedTrainer(RowsTrainer):
    """The loss of `ImitationTrainer` over rows of `packed_rows`, one row per forward pass.

    Every distinct prefix of a row is computed once, and no token attends to a token of another example.
    """

    def __init__(self, **arguments: Any):
        super().__init__(data_collator=default_data_collator, **arguments)
        self.model_accepts_loss_kwargs = True  # `compute_loss` divides by the number of labels of the whole step
        self._loss_shifts_labels = False  # all labels count, the first as well

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        assert num_items_in_batch is not None
        names = ("input_ids", "positions", "last", "at", "labels")
        logprobs = path_logprobs(model, *(inputs[name][0] for name in names), logits=self.logits)
        # Gradients are averaged over the processes, so the mean is multiplied by their number.
        loss = -logprobs.sum() / num_items_in_batch * self.accelerator.num_processes
        return (loss, logprobs) if return_outputs else loss

    def held_out(self, model, inputs):
        names = ("input_ids", "positions", "last", "at")
        logits, labels = self.logits(model, *(inputs[name][0] for name in names)), inputs["labels"][0]
        loss = F.cross_entropy(logits.float(), labels, reduction="sum")
        return torch.stack([loss, (logits.argmax(-1) == labels).float().sum(), loss.new_tensor(len(labels))])[None]


def packed_rows(rows: Rows, budget: int, seed: int) -> LazyRows:
    """Pack rows of `sft_rows` into rows of at most ``budget`` tokens (see `pack`), each laid out when it is read.

    A packed row is a `Tree` and, for every trained token, the index at which it is predicted (``at``) and its id
    (``labels``).
    """
    if not isinstance(rows, Dataset):
        rows = Dataset.from_list(list(rows))
    members = pack_rows(rows, budget, seed)
    return LazyRows(len(members), partial(_packed_row, rows, members))


def _packed_row(rows: Dataset, members: Sequence[Sequence[int]], number: int) -> Row:
    examples = [rows[i] for i in members[number]]
    tree = lay_out([example["input_ids"] for example in examples])
    trained = [
        (path[k - 1], label)
        for example, path in zip(examples, tree.paths, strict=True)
        for k, label in enumerate(example["labels"])
        if k and label != IGNORE
    ]
    return {
        "input_ids": tree.ids,
        "positions": tree.positions,
        "last": tree.last,
        "at": [at for at, _ in trained],
        "labels": [label for _, label in trained],
    }


def sft_trainer(
    recipe: TrainRecipe,
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    checkpoints: Path,
    held_out: Dataset | None = None,
) -> Trainer:
    """Return the trainer of Stage I, its model loaded, for rows of `sft_rows`; it is evaluated on ``held_out``."""
    if budget := recipe.pack_tokens:
        args, model = tree_parts(recipe, checkpoints)
        return PackedTrainer(
            automatic=recipe.attention == "auto",
            model=model,
            args=args,
            train_dataset=packed_rows(rows, budget, recipe.seed),
            eval_dataset=packed_rows(held_out, budget, recipe.seed) if held_out else None,
            processing_class=tokenizer,
        )
    arguments = trainer_arguments(recipe, checkpoints)
    args = SFTConfig(**arguments, dataset_kwargs={"skip_prepare_dataset": True})
    return ImitationTrainer(
        **starting_point(recipe, arguments["model_init_kwargs"]),
        args=args,
        train_dataset=rows,
        eval_dataset=held_out,
        processing_class=tokenizer,
    )
