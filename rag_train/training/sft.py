"""Stage I, imitation learning (DeepRAG, section 3.3): fine-tuning on what the controller writes, and only that."""

from __future__ import annotations

from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from rag_train.training.config import TrainRecipe
from rag_train.training.run import lora_config, require_finite, trainer_arguments


class ImitationTrainer(SFTTrainer):
    """TRL's SFTTrainer over rows of ``input_ids`` and ``labels``.

    The loss of a trajectory of n steps is

        L = - sum_{1<=i<=n} [ log Pr(q_i | s_{i-1}) + log Pr(a_i | s_{i-1}, q_i, d_i) ]

    with subquery q_i (and the decision written after it), answer a_i and documents d_i, which are masked. The
    paper prints log [Pr + Pr]; a sum of two probabilities is no likelihood of the text, so that is taken as a
    slip. It is averaged over the trained tokens of a whole optimizer step, so neither the batch size per device
    nor the gradient accumulation weighs one token more than another.
    """

    def training_step(self, *args, **kwargs):
        return require_finite(super().training_step(*args, **kwargs), self.state.global_step)


def sft_trainer(
    recipe: TrainRecipe, rows: list[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase, checkpoints: Path
) -> ImitationTrainer:
    """The trainer of Stage I, its model loaded; ``rows`` are those of ``sft_rows``."""
    return ImitationTrainer(
        model=recipe.model,
        args=SFTConfig(**trainer_arguments(recipe, checkpoints), dataset_kwargs={"skip_prepare_dataset": True}),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(recipe),
    )
