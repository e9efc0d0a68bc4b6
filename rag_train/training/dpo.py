"""Stage II, chain of calibration (DeepRAG, section 3.4): preference training of the decision at each subquery."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset, load_from_disk
from peft import PeftModel
from trl import DPOConfig, DPOTrainer

from rag_train.training.masking import IGNORE
from rag_train.training.recipe import DPORecipe, TrainRecipe
from rag_train.training.setup import parts_for_trl, trainer_arguments
from rag_train.training.tree_dpo import held_out_pairs
from rag_train.training.validation import HeldOutTrainer


class CalibrationTrainer(HeldOutTrainer, DPOTrainer):
    """TRL's DPOTrainer over rows of ``prompt_ids``, ``chosen_ids`` and ``rejected_ids``.

    With ``loss: sigmoid``, the loss of a pair at state s_i and subquery q_i is

        L = - log sigmoid( beta log [pi(y_w | s_i, q_i) / pi_ref(y_w | s_i, q_i)]
                         - beta log [pi(y_l | s_i, q_i) / pi_ref(y_l | s_i, q_i)] )

    where y_w and y_l are the snippets that announce the better and the worse decision, and pi_ref is the model that
    training starts from. The reference log-probabilities are computed once, before the first step.

    L bounds no probability: both snippets may become improbable, as long as the worse snippet does so faster, and
    then the model writes a third continuation at inference. ``sft_weight`` is the weight of an additional term,
    - log pi(y_w | s_i, q_i) averaged over the snippet's tokens (iterative RPO, Pang et al. 2024); 0 is the paper's
    loss.
    """

    def __init__(self, settings: DPORecipe, **arguments: Any):
        self._settings = settings
        super().__init__(**arguments)

    def held_out(self, model, inputs):
        mask = inputs["completion_mask"]
        labels = inputs["input_ids"].masked_fill(mask == 0, IGNORE)
        more = {"attention_mask": inputs["attention_mask"], "use_cache": False, "fused_lm_head": True}
        logprobs = model(input_ids=inputs["input_ids"], labels=labels, **more).log_probs.sum(1)
        reference = torch.cat([inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]])
        pairs = (values.view(2, -1).T for values in (logprobs, reference, mask.sum(1)))
        return held_out_pairs(self._settings, *pairs)

    def _prepare_dataset(self, dataset, processing_class, args, dataset_name):
        """Keep the rows. TRL would tokenise again and add an end-of-text token, but the text continues there."""
        return dataset


def dpo_trainer(recipe: TrainRecipe, checkpoints: Path, **data: Any) -> CalibrationTrainer:
    """Return the trainer of Stage II, its model loaded, for the ``data`` of `build_trainer`: rows of `dpo_rows`."""
    settings = recipe.dpo
    assert settings is not None
    # Under FSDP, TRL 1.16 computes the reference before the first process has sent the others their weights.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    losses: dict[str, float] = {settings.loss: 1.0}
    if noise := settings.label_smoothing:
        # The conservative loss (1 - e) l(x) + e l(-x), combined from two losses of TRL: l(x) and "robust", which is
        # [(1 - e) l(x) - e l(-x)] / (1 - 2 e).
        losses = {"sigmoid": 2 * (1 - noise), "robust": 2 * noise - 1}
    if settings.sft_weight:
        losses["sft"] = settings.sft_weight
    arguments = DPOConfig(
        **trainer_arguments(recipe, checkpoints),
        beta=settings.beta,
        label_smoothing=settings.label_smoothing,
        loss_type=list(losses),
        loss_weights=list(losses.values()),
        precompute_ref_log_probs=True,
    )
    for name in ("train_dataset", "eval_dataset"):
        data[name] = data[name] and _on_disk(data[name], checkpoints / name)
    trainer = CalibrationTrainer(settings, **parts_for_trl(recipe, arguments), **data)
    if isinstance(trainer.model, PeftModel) and "ref" in trainer.model.peft_config:
        trainer.model.delete_adapter("ref")  # TRL's copy of the starting adapters; their reference is computed
    return trainer


def _on_disk(rows: Dataset, path: Path) -> Dataset:
    """Return the rows as a dataset on disk, next to which the first process passes the reference log-probabilities
    to the others."""
    if PartialState().is_main_process:
        rows.save_to_disk(path)
    PartialState().wait_for_everyone()
    dataset = load_from_disk(path)
    assert isinstance(dataset, Dataset)
    return dataset
