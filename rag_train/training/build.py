"""The trainer of a recipe, by its stage and layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PrinterCallback

from rag_train.errors import UserError
from rag_train.training.merge import valid_generation
from rag_train.training.recipe import TrainRecipe


def build_trainer(recipe: TrainRecipe, rows: Any, tokenizer: Any, checkpoints: Path, held_out: Any = None):
    """Return the trainer of the recipe's stage and layout, its model loaded; it is evaluated on ``held_out``.

    Raises UserError if TRL, PEFT or the Hub refuse a setting.
    """
    try:
        if recipe.stage == "sft" and "target_ids" in rows.column_names:
            from rag_train.training.encoder_decoder import encoder_decoder_trainer

            trainer = encoder_decoder_trainer(recipe, rows, tokenizer, checkpoints, held_out)
        elif recipe.stage == "sft":
            from rag_train.training.sft import sft_trainer

            trainer = sft_trainer(recipe, rows, tokenizer, checkpoints, held_out)
        elif recipe.stage == "rl":
            from rag_train.training.rl.trainer import rl_trainer

            trainer = rl_trainer(recipe, rows, tokenizer, checkpoints)
        elif recipe.trees:
            from rag_train.training.tree_dpo import tree_trainer

            trainer = tree_trainer(recipe, rows, tokenizer, checkpoints, held_out)
        else:
            from rag_train.training.dpo import dpo_trainer

            trainer = dpo_trainer(recipe, rows, tokenizer, checkpoints, held_out)
    except (OSError, ImportError, ValueError) as error:
        raise UserError(f"model {recipe.model}: {str(error).splitlines()[0]}") from error
    valid_generation(trainer.model)
    trainer.remove_callback(PrinterCallback)
    return trainer
