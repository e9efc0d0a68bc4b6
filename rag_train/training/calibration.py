"""Stage II with every prefix computed once: the same numbers as TRL's trainer, in one forward pass a batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import PartialState
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase, Trainer, TrainingArguments, set_seed

from rag_train.errors import UserError
from rag_train.progress import progress
from rag_train.training.config import TrainRecipe
from rag_train.training.run import lora_config, require_finite, trainer_arguments
from rag_train.training.tree import lay_out, path_logprobs


def tree_row(pairs: Sequence[dict[str, list[int]]]) -> dict[str, list[int]]:
    """A batch of pairs (rows of ``dpo_rows``) as one row: a `Tree`, and for every snippet token the index that
    predicts it (``at``), its id (``targets``) and whose it is (``owner``: 2 n for pair n's chosen snippet, 2 n + 1
    for its rejected one)."""
    sides = [(pair["prompt_ids"], pair[side]) for pair in pairs for side in ("chosen_ids", "rejected_ids")]
    tree = lay_out([prompt + snippet for prompt, snippet in sides])
    at, targets, owner = [], [], []
    for n, ((prompt, snippet), path) in enumerate(zip(sides, tree.paths, strict=True)):
        at += path[len(prompt) - 1 : -1]
        targets += snippet
        owner += [n] * len(snippet)
    return {
        "ids": tree.ids,
        "positions": tree.positions,
        "last": tree.last,
        "at": at,
        "targets": targets,
        "owner": owner,
    }


class TreeTrainer(Trainer):
    """DPO as in `rag_train.training.dpo`, over rows of ``tree_row`` with ``reference``: the log-probability of each
    snippet under the model that training starts from."""

    def __init__(self, recipe: TrainRecipe, **arguments: Any):
        super().__init__(data_collator=_one, **arguments)
        self._recipe = recipe
        self.model_accepts_loss_kwargs = False  # a row's loss is a mean already
        self._margins: list[torch.Tensor] = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        tokens = _snippet_logprobs(model, inputs)
        owner, reference = inputs["owner"], inputs["reference"]
        sums = torch.zeros_like(reference).index_add(0, owner, tokens)
        margins = (sums - reference).view(-1, 2)
        inside = self._recipe.beta * (margins[:, 0] - margins[:, 1])
        noise = self._recipe.label_smoothing
        loss = (-(1 - noise) * F.logsigmoid(inside) + noise * F.logsigmoid(-inside)) / (1 - 2 * noise)
        loss = loss.mean()
        if self._recipe.sft_weight:
            loss = loss - self._recipe.sft_weight * tokens[owner % 2 == 0].mean()
        self._margins.append(inside.detach())
        return (loss, inside) if return_outputs else loss

    def training_step(self, model, inputs, *args, **kwargs):
        self.state.num_input_tokens_seen += inputs["ids"].numel()
        return require_finite(super().training_step(model, inputs, *args, **kwargs), self.state.global_step)

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        """Adds TRL's names for the rewards' margin, of the pairs since the last time."""
        if "loss" in logs and self._margins:
            margins = torch.cat(self._margins)
            logs |= {
                "rewards/margins": margins.mean().item(),
                "rewards/accuracies": (margins > 0).float().mean().item(),
            }
            self._margins.clear()
        super().log(logs, *args, **kwargs)


def _one(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    [row] = rows
    return {name: torch.tensor(value) for name, value in row.items()}


def _snippet_logprobs(model, row: dict[str, torch.Tensor]) -> torch.Tensor:
    names = ("ids", "positions", "last", "at", "targets")
    return path_logprobs(model, *(row[name] for name in names))


def tree_trainer(
    recipe: TrainRecipe, rows: list[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase, checkpoints: Path
) -> TreeTrainer:
    """The trainer of Stage II, its model loaded; ``rows`` are those of ``dpo_rows``, ``batch_size`` of them in the
    order of the file are a row. Raises UserError where the model is sharded over processes."""
    state = PartialState()
    if str(state.distributed_type).rpartition(".")[2] in ("DEEPSPEED", "FSDP"):
        raise UserError("layout=tree: not with DeepSpeed or FSDP yet; use DDP, or layout=pairs")
    size = recipe.batch_size
    batches = [tree_row(rows[i : i + size]) for i in range(0, len(rows), size)]
    arguments = trainer_arguments(recipe, checkpoints)
    for name in ("max_length", "pad_to_multiple_of", "model_init_kwargs"):  # TRL's own
        init = arguments.pop(name)
    model = AutoModelForCausalLM.from_pretrained(recipe.model, **init)
    arguments["per_device_train_batch_size"] = 1
    arguments["include_num_input_tokens_seen"] = "no"
    args = TrainingArguments(**arguments, remove_unused_columns=False, label_names=[])
    model.to(args.device)  # pyright: ignore[reportArgumentType]
    _add_reference(model, batches, args)
    if config := lora_config(recipe):
        from peft import get_peft_model

        set_seed(recipe.seed)  # of the adapters' initial weights
        model = get_peft_model(model, config)
    return TreeTrainer(
        recipe, model=model, args=args, train_dataset=Dataset.from_list(batches), processing_class=tokenizer
    )


@torch.no_grad()
def _add_reference(model, batches: list[dict[str, Any]], args: TrainingArguments) -> None:
    """Adds ``reference`` to each row; every process computes all of them, lest they disagree."""
    half = torch.autocast(args.device.type, torch.bfloat16, enabled=args.bf16)
    with progress("reference", len(batches)) as advance, half:
        for batch in batches:
            row = {name: torch.tensor(value, device=args.device) for name, value in batch.items()}
            tokens = _snippet_logprobs(model.eval(), row)
            sums = torch.zeros(int(row["owner"].max()) + 1, device=args.device).index_add(0, row["owner"], tokens)
            batch["reference"] = sums.tolist()
            advance()
