"""Stage I for encoder-decoders, such as FLAN-T5: the encoder reads the prompt, the decoder learns the rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer

from rag_train.errors import UserError
from rag_train.training.epoch import PADDING
from rag_train.training.masking import IGNORE
from rag_train.training.recipe import TrainRecipe
from rag_train.training.rows import Row
from rag_train.training.setup import own_parts
from rag_train.training.sft import LabelTrainer


class EncoderDecoderTrainer(LabelTrainer):
    """A `LabelTrainer` over rows of `rag_train.training.data.APART`, whose two sides are padded.

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

    def scored(self, model, inputs):
        read, labels = {name: value for name, value in inputs.items() if name != "labels"}, inputs["labels"]
        trained = labels != IGNORE
        return model(**read, use_cache=False).logits[trained], labels[trained], trained.nonzero()[:, 0]

    def _track_num_input_tokens(self, inputs):
        masks = torch.cat([inputs["attention_mask"], inputs["decoder_attention_mask"]], 1)
        super()._track_num_input_tokens(inputs | {"attention_mask": masks})


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


def encoder_decoder_trainer(recipe: TrainRecipe, checkpoints: Path, **data: Any) -> Trainer:
    """Return the trainer of an encoder-decoder, its model loaded, for the ``data`` of `build_trainer`."""
    assert recipe.sft is not None
    return EncoderDecoderTrainer(weight=recipe.sft.weight, **own_parts(recipe, checkpoints), **data)
