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
    if recipe.stage == "rl":
        from rag_train.training.rl.trainer import rl_trainer as make
    elif recipe.stage == "dpo" and recipe.trees:
        from rag_train.training.tree_dpo import tree_trainer as make
    elif recipe.stage == "dpo":
        from rag_train.training.dpo import dpo_trainer as make
    elif "target_ids" in rows.column_names:
        from rag_train.training.encoder_decoder import encoder_decoder_trainer as make
    else:
        from rag_train.training.sft import sft_trainer as make
    try:
        trainer: Any = make(
            recipe, checkpoints, train_dataset=rows, eval_dataset=held_out, processing_class=tokenizer
        )
    except (OSError, ImportError, ValueError) as error:
        raise UserError(f"model {recipe.model}: {str(error).splitlines()[0]}") from error
    valid_generation(trainer.model)
    trainer.remove_callback(PrinterCallback)
    return trainer
