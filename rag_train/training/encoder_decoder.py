"""Stage I for encoder-decoders, such as FLAN-T5: the encoder reads the prompt, the decoder learns the rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, Trainer

from rag_train.errors import UserError
from rag_train.training.epoch import PADDING
from rag_train.training.masking import IGNORE
from rag_train.training.recipe import TrainRecipe
from rag_train.training.rows import Row
from rag_train.training.setup import load_model, own_arguments
from rag_train.training.sft import WeightedTrainer


class EncoderDecoderTrainer(WeightedTrainer):
    """The loss of `ImitationTrainer` over rows of `rag_train.training.data.APART`, whose two sides are padded.

    Masked text after the first trained segment, such as passages, is read by the decoder and not trained.
    """

    def __init__(self, **arguments: Any):
        generation = arguments["model"].generation_config
        if (start := generation and generation.decoder_start_token_id) is None:
            raise UserError(
                f"model {arguments['model'].config.name_or_path}: does not name the token that its decoder begins "
                "with; set decoder_start_token_id in generation_config.json"
            )
        super().__init__(data_collator=partial(batch, start), **arguments)
        self.model_accepts_loss_kwargs = True  # `compute_loss` divides by the number of labels of the whole step
        self._loss_shifts_labels = False  # all labels count, the first as well

    def examples(self, inputs):
        return len(inputs["labels"])

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        assert num_items_in_batch is not None
        losses, logits = _losses(model, inputs)
        if self.by_example:
            losses = losses / (inputs["labels"] != IGNORE).sum(1, keepdim=True)
        # Gradients are averaged over the processes, so the mean is multiplied by their number.
        loss = losses.sum() / num_items_in_batch * self.accelerator.num_processes
        return (loss, logits) if return_outputs else loss

    def held_out(self, model, inputs):
        losses, logits = _losses(model, inputs)
        trained, right = inputs["labels"] != IGNORE, logits.argmax(-1) == inputs["labels"]
        return self.figures(losses.sum(1), right.sum(1), trained.sum(1))

    def _track_num_input_tokens(self, inputs):
        masks = torch.cat([inputs["attention_mask"], inputs["decoder_attention_mask"]], 1)
        super()._track_num_input_tokens(inputs | {"attention_mask": masks})


def _losses(model: Any, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of each label, 0 where it is masked, and the logits."""
    read = {name: value for name, value in inputs.items() if name != "labels"}
    logits = model(**read, use_cache=False).logits
    losses = F.cross_entropy(logits.flatten(0, 1).float(), inputs["labels"].flatten(), reduction="none")
    return losses.view_as(inputs["labels"]), logits


def batch(start: int, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Return rows as a batch: the decoder reads ``start`` and all of its tokens but the last.

    Masked tokens are read as well, so that the decoder's input cannot be made from the labels.
    """
    prompts, targets = ([row[name] for row in rows] for name in ("input_ids", "target_ids"))
    return {
        "input_ids": _padded(prompts, 0),
        "attention_mask": _padded([[1] * len(ids) for ids in prompts], 0),
        "decoder_input_ids": _padded([[start, *ids[:-1]] for ids in targets], 0),
        "decoder_attention_mask": _padded([[1] * len(ids) for ids in targets], 0),
        "labels": _padded([row["labels"] for row in rows], IGNORE),
    }


def _padded(rows: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
    """Return the rows padded at the right, to one of a few lengths."""
    padded = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=fill)
    return F.pad(padded, (0, -padded.shape[1] % PADDING), value=fill)


def encoder_decoder_trainer(
    recipe: TrainRecipe,
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    checkpoints: Path,
    held_out: Dataset | None = None,
) -> Trainer:
    """Return the trainer of an encoder-decoder, its model loaded; it is evaluated on ``held_out``."""
    assert recipe.sft is not None
    args, init = own_arguments(recipe, checkpoints)
    return EncoderDecoderTrainer(
        weight=recipe.sft.weight,
        model=load_model(recipe, **init),
        args=args,
        train_dataset=rows,
        eval_dataset=held_out,
        processing_class=tokenizer,
    )
