"""The proof, before the first step, that rows of several sequences are computed as each of them alone would be.

Not every architecture takes the mask and the positions that a row needs: some ignore them, without an error, and
then a sequence sees the others of its row. Two short documents show it on the loaded model: neither may feel a
change of the other, and each must get the log-probabilities of a plain forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import extract_model_from_parallel, gather
from transformers import TrainerCallback

from rag_train.errors import UserError
from rag_train.precision import exact_attention
from rag_train.training.processes import say_once
from rag_train.training.tree import (
    NO_TREES,
    Logits,
    Tensors,
    lay_out,
    path_logits,
    path_logprobs,
    separate_logits,
    supports,
    tensors,
)
from rag_train.training.validation import HeldOutTrainer

ROUNDING = {False: 1e-3, True: 0.1}
"""Greatest difference from the plain forward pass that may be rounding, which kernels do differently, in fp32 and
in bf16: root mean square, in standard deviations of the logits."""
LEAK = {False: 1e-4, True: 5e-3}
"""Greatest change of any logit by a change of the other documents, in standard deviations. The same kernels compute
the same shapes, so that nearly nothing is rounded differently."""


def proven_logits(model: Any, half: bool, automatic: bool) -> Logits:
    """Return the function that computes the logits of rows with ``model``, and set the model's attention for it.

    This is `path_logits`. If the model does not pass with its attention, and the choice is ``automatic``, PyTorch's
    fused kernel is tried next. The last is `separate_logits`, with a line that says why.

    All processes call this with the model as it is wrapped for training; ``half`` says that its matrix products are
    in bf16. Random states are not touched. Raises UserError if none passes.
    """
    inner: Any = extract_model_from_parallel(model)
    training, before = model.training, inner.config._attn_implementation
    model.eval()
    with torch.no_grad():
        problem = _problem(model, path_logits, half)
        if problem and automatic and before != "sdpa" and supports(inner.config, "sdpa"):
            inner.set_attn_implementation("sdpa")
            if not _problem(model, path_logits, half):
                problem = None
                say_once(f"attention: sdpa, because {before} does not work with this model")
        found: Logits = path_logits
        if problem:
            _set_plain(inner)
            found = separate_logits
            say_once(
                f"model of type {inner.config.model_type}: rows of several sequences are not possible ({problem}); "
                "they are computed as padded batches of single ones, with the same loss but more slowly"
            )
            if worse := _problem(model, separate_logits, half):
                raise UserError(f"model of type {inner.config.model_type}: {worse}; {NO_TREES}")
    model.train(training)
    return found


class RowsTrainer(HeldOutTrainer):
    """A trainer over rows of `labelled_row`, which the model proves to compute before the first step."""

    def __init__(self, automatic: bool = True, **arguments: Any):
        """``automatic``: whether another attention may be tried."""
        super().__init__(data_collator=tensors, **arguments)
        self.logits: Logits = path_logits
        self._automatic = automatic
        self.add_callback(AtStart(self.prepare))

    def prepare(self) -> None:
        """Prove that the model computes rows; called before the first step."""
        self.logits = proven_logits(self.model_wrapped, self.args.bf16, self._automatic)

    def logprobs(self, model: Any, row: Tensors) -> torch.Tensor:
        """Return the log-probability of each label of a row."""
        return path_logprobs(model, row, self.logits)


class AtStart(TrainerCallback):
    """Does what needs the model as it is wrapped for training, but comes before the first step."""

    def __init__(self, work: Callable[[], None]):
        self._work = work

    def on_train_begin(self, args, state, control, **kwargs):
        self._work()


def require_trees(model: Any, half: bool) -> None:
    """Raise UserError if ``model`` does not compute rollouts that share a row as if each were alone."""
    training = model.training
    model.eval()
    with torch.no_grad():
        problem = _problem(model, path_logits, half)
    model.train(training)
    if problem:
        inner: Any = extract_model_from_parallel(model)
        kind = inner.config.model_type
        raise UserError(f"model of type {kind}: rollouts cannot share rows ({problem}); set rl.layout=rollouts")


def _set_plain(model: Any) -> str:
    """Let the model compute single sequences exactly, and return the attention that it had."""
    before = model.config._attn_implementation
    plain = "sdpa" if supports(model.config, "sdpa") else "eager"
    model.set_attn_implementation(exact_attention(model.config).get("attn_implementation", plain))
    return before


@contextmanager
def _plain(model: Any) -> Iterator[None]:
    before = _set_plain(model)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _problem(model: Any, logits: Logits, half: bool) -> str | None:
    """Return what is wrong with the logits of a row in any process; None if nothing is.

    The row has two documents that begin alike, as trees do, and one of their own in front of them.
    """
    inner: Any = extract_model_from_parallel(model)
    device: Any = PartialState().device
    few = min(1000, inner.config.get_text_config().vocab_size)
    parts = torch.randint(few // 8, few, (4, 24), generator=torch.Generator().manual_seed(0)).tolist()
    first, common, one, other = parts[0], parts[1][:12], parts[2][:8], parts[3][:8]
    documents = [first, common + one, common + other]
    changed = [first[::-1], common + one[::-1], common + other]
    try:
        row, same = (_row_logits(model, logits, texts, device) for texts in (documents, changed))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of any type: the model was not written for such rows
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"its forward pass fails: {reason.partition(';')[0][:200]}"
    with _plain(inner):
        alone = [
            model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0] for ids in documents
        ]
    scale = torch.cat(alone).float().std()
    leak = (row[-1].float() - same[-1].float()).abs().max() / scale
    errors = [got.float() - right.float() for got, right in zip(row, alone, strict=True)]
    # What the row's first document is off by is rounding: it is where it is alone, too.
    parts = (errors[0], torch.cat(errors[1:]))
    rounding, difference = (part.square().mean().sqrt() / scale for part in parts)
    found = gather(torch.stack([leak, rounding, difference]).float()[None])
    assert isinstance(found, torch.Tensor)
    leak, rounding, difference = found.view(-1, 3).nan_to_num(torch.inf).amax(0).tolist()
    if leak > LEAK[half]:
        return "a sequence sees another one of its row"
    if rounding > ROUNDING[half] or difference > 3 * rounding + ROUNDING[half] / 10:
        return "the log-probabilities are not those of a plain forward pass"
    return None


def _row_logits(model: Any, logits: Logits, documents: list[list[int]], device: torch.device) -> list[torch.Tensor]:
    """Return the logits at the tokens of each document, all laid out in one row."""
    tree = lay_out(documents)
    at = [index for path in tree.paths for index in path]
    row = tensors([{"input_ids": tree.ids, "positions": tree.positions, "last": tree.last, "at": at}])
    found = logits(model, {name: values.to(device) for name, values in row.items()})
    return list(found.split([len(path) for path in tree.paths]))
