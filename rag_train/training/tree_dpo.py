"""Stage II in the tree layout: TRL's losses, with every distinct prefix of a batch computed once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accelerate.utils import gather_object, reduce
from datasets import Dataset
from torch.utils.data import ConcatDataset
from trl.trainer.utils import disable_dropout_in_model

from rag_train.errors import UserError
from rag_train.jobs.files import write_text
from rag_train.progress import progress
from rag_train.training.masking import IGNORE
from rag_train.training.probe import RowsTrainer
from rag_train.training.recipe import DPORecipe, TrainRecipe
from rag_train.training.rows import LazyRows
from rag_train.training.setup import tree_parts
from rag_train.training.tree import labelled_row, tensors

REFERENCE = "reference.json"


def tree_row(pairs: Iterable[dict[str, list[int]]]) -> dict[str, Any]:
    """Lay out a batch of pairs (rows of `dpo_rows`) as one row, whose snippets have labels.

    The chosen snippet of pair n is example 2 n of the row, and the rejected one 2 n + 1.
    """
    sides = [(pair["prompt_ids"], pair[side]) for pair in pairs for side in ("chosen_ids", "rejected_ids")]
    return labelled_row((prompt + snippet, [IGNORE] * len(prompt) + snippet) for prompt, snippet in sides)


def tree_rows(rows: Dataset, size: int, first: int = 0) -> LazyRows:
    """Return a row of `tree_row` for each ``size`` pairs, with its number as ``row``, counted from ``first``."""

    def row(number: int) -> dict[str, Any]:
        pairs = (rows[i] for i in range(number * size, min(len(rows), (number + 1) * size)))
        return tree_row(pairs) | {"row": first + number}

    return LazyRows(math.ceil(len(rows) / size), row)


def preference_loss(settings: DPORecipe, ratios: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the loss of each pair, of shape (N,), as TRL computes it.

    ``ratios`` are log [pi(y | x) / pi_ref(y | x)] and ``lengths`` the number of tokens of y, both of shape (N, 2),
    for the chosen and the rejected snippet y.
    """
    if settings.loss != "sigmoid":
        ratios = ratios / lengths
    difference = ratios[:, 0] - ratios[:, 1]
    if settings.loss == "ipo":
        return (difference - 1 / (2 * settings.beta)) ** 2
    inside, noise = settings.beta * difference, settings.label_smoothing
    return -(1 - noise) * F.logsigmoid(inside) - noise * F.logsigmoid(-inside)


def held_out_pairs(
    settings: DPORecipe, logprobs: torch.Tensor, reference: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Return the loss of each pair, whether the model prefers its chosen snippet, and 1; and the imitation term on
    the chosen snippet with its number of tokens, over which the training averages it. The shape is (N, 5).

    ``logprobs`` and ``reference`` are log pi(y | x) and log pi_ref(y | x), ``lengths`` the number of tokens of y;
    all have shape (N, 2), for the chosen and the rejected snippet y.
    """
    loss = preference_loss(settings, logprobs - reference, lengths)
    preferred = (logprobs[:, 0] > logprobs[:, 1]).float()
    imitation = -settings.sft_weight * logprobs[:, 0]
    return torch.stack([loss, preferred, torch.ones_like(loss), imitation, lengths[:, 0].to(loss)], 1)


class TreeTrainer(RowsTrainer):
    """DPO as in `rag_train.training.dpo`, over rows of `tree_row` with their number as ``row``."""

    def __init__(self, settings: DPORecipe, **arguments: Any):
        super().__init__(**arguments)
        self._settings = settings
        self.model_accepts_loss_kwargs = False  # the loss of a row is already a mean
        self._margins: list[torch.Tensor] = []
        self._reference: list[list[float]] = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        tokens, owner = self.logprobs(model, inputs), inputs["owner"]
        reference = tokens.new_tensor(self._reference[inputs["row"]])
        ratios = (torch.zeros_like(reference).index_add(0, owner, tokens) - reference).view(-1, 2)
        loss = preference_loss(self._settings, ratios, owner.bincount().view(-1, 2)).mean()
        if self._settings.sft_weight:
            loss = loss - self._settings.sft_weight * tokens[owner % 2 == 0].mean()
        self._margins.append(self._settings.beta * (ratios[:, 0] - ratios[:, 1]).detach())
        return (loss, ratios) if return_outputs else loss

    def held_out(self, model, inputs):
        tokens, owner = self.logprobs(model, inputs), inputs["owner"]
        lengths = owner.bincount().view(-1, 2)
        reference = tokens.new_tensor(self._reference[inputs["row"]]).view(-1, 2)
        sums = torch.zeros_like(reference).view(-1).index_add(0, owner, tokens).view(-1, 2)
        return held_out_pairs(self._settings, sums, reference, lengths).sum(0, keepdim=True)

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        """Add the reward margin and accuracy under TRL's names, for all processes' pairs since the last log."""
        if "loss" in logs and self._margins:
            margins = torch.cat(self._margins)
            sums = reduce(torch.stack([margins.sum(), (margins > 0).sum(), margins.new_tensor(len(margins))]))
            assert isinstance(sums, torch.Tensor)
            total, right, pairs = sums.tolist()
            logs |= {"rewards/margins": total / pairs, "rewards/accuracies": right / pairs}
            self._margins.clear()
        super().log(logs, *args, **kwargs)

    def prepare(self) -> None:
        super().prepare()
        self.prepare_reference()

    @torch.no_grad()
    def prepare_reference(self) -> None:
        """Compute the log-probability of the snippets of each row, held-out rows included, under the model that
        training starts from.

        This is done before the first step with the model as it is wrapped for training, so that it works with any
        sharding. A resumed run reads the values that were written then.
        """
        assert self.args.output_dir is not None and isinstance(self.train_dataset, LazyRows)
        path = Path(self.args.output_dir) / REFERENCE
        if self.state.global_step:
            try:
                self._reference = json.loads(path.read_text())
            except (OSError, ValueError):
                raise UserError(f"{path}: missing or damaged; delete {path.parent} to start again") from None
            return
        rows: Any = self.train_dataset
        model, computed = self.model_wrapped, []
        assert model is not None
        if isinstance(self.eval_dataset, LazyRows):
            rows = ConcatDataset([rows, self.eval_dataset])
        model.eval()
        starts = range(0, len(rows), self.args.world_size)
        first = self.is_world_process_zero()
        with progress("reference", len(starts)) if first else nullcontext(lambda: None) as advance:
            for start in starts:  # the same number in every process, because all gather sharded weights together
                number = min(start + self.args.process_index, len(rows) - 1)
                row = self._prepare_inputs(tensors([rows[number]]))
                tokens, owner = self.logprobs(model, row), row["owner"]
                sums = tokens.new_zeros(int(owner.max()) + 1).index_add(0, owner, tokens)
                computed.append((number, sums.tolist()))
                advance()
        self._reference = [sums for _, sums in sorted(dict(gather_object(computed)).items())]
        if first:
            write_text(path, json.dumps(self._reference))


def tree_trainer(recipe: TrainRecipe, checkpoints: Path, **data: Any) -> TreeTrainer:
    """Return the trainer of Stage II in the tree layout, its model loaded, for the ``data`` of `build_trainer`.

    Each ``batch_size`` pairs, in the order of the file, form one tree, which is laid out when it is read.
    """
    assert recipe.dpo is not None
    parts, first = tree_parts(recipe, checkpoints), 0
    disable_dropout_in_model(parts["model"])  # as TRL does: policy and reference agree before the first step
    for name in ("train_dataset", "eval_dataset"):
        data[name] = data[name] and tree_rows(data[name], recipe.batch_size, first)
        first = len(data["train_dataset"])
    return TreeTrainer(recipe.dpo, **parts, **data)
