"""The forward passes of an epoch, counted from the rows before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from datasets import Dataset

from rag_train.training.data import DPO
from rag_train.training.masking import IGNORE
from rag_train.training.packing import distinct_runs, pack_rows, sortable
from rag_train.training.recipe import RLRecipe, TrainRecipe
from rag_train.training.rows import TokenColumn
from rag_train.training.tree import SLICE, few_lengths

PADDING = 64
"""Row lengths of TRL's trainers are padded to a multiple of this number (`trainer_arguments`)."""


class Pass(NamedTuple):
    """Tokens of a forward pass, padding included, and how many of them get logits.

    ``attended`` counts the pairs of a token and one that attention compares it with, masked ones included: those of
    `sliced_attention` in packed rows and trees, and those of the mask in padded batches. With an encoder-decoder,
    they are those of a layer of the encoder and one of the decoder, and the decoder's tokens get logits.
    """

    tokens: int
    predicted: int
    attended: int = 0


@dataclass(frozen=True)
class Epoch:
    """The forward passes of an epoch, of all processes together.

    Attributes:
        examples: number of examples or pairs.
        passes: number of forward passes.
        tokens: tokens that they compute, padding included; a prefix that a row shares counts once.
        predicted: how many of them get logits.
        largest: the passes that no other pass equals or exceeds in all three counts.
    """

    examples: int
    passes: int
    tokens: int
    predicted: int
    largest: tuple[Pass, ...]


def epoch(recipe: TrainRecipe, rows: Dataset) -> Epoch:
    """Return the passes over rows of `sft_rows`, `dpo_rows` or `question_rows`.

    Packed rows and trees are laid out to be counted. Rollouts count with the most tokens that they may have.
    """
    if recipe.rl:
        return _rollouts(recipe, recipe.rl, len(rows))
    if recipe.pack_tokens:
        return _added(len(rows), _packed(rows, recipe.pack_tokens, recipe.seed))
    if recipe.trees:
        return _added(len(rows), _trees(rows, recipe.batch_size))
    if "target_ids" in rows.column_names:
        return _apart(rows, recipe.batch_size)
    if recipe.stage == "sft":
        lengths = TokenColumn(rows, "input_ids").lengths()
    else:
        prompt, chosen, rejected = (TokenColumn(rows, name).lengths() for name in DPO)
        lengths = np.concatenate([prompt + chosen, prompt + rejected])
    return _padded(len(rows), lengths, recipe.batch_size)


def _added(examples: int, passes: Iterable[Pass]) -> Epoch:
    """Return the epoch of rows that are padded as `padded` does."""
    rounded = [Pass(few_lengths(each.tokens), few_lengths(each.predicted), each.attended) for each in passes]
    tokens, predicted, _ = zip(*rounded, strict=True)
    return Epoch(examples, len(rounded), sum(tokens), sum(predicted), _largest(rounded))


def _largest(passes: Iterable[Pass]) -> tuple[Pass, ...]:
    """Return the passes that no other one equals or exceeds in all counts."""
    found: list[Pass] = []
    for each in sorted(set(passes), reverse=True):
        if not any(each.predicted <= other.predicted and each.attended <= other.attended for other in found):
            found.append(each)
    return tuple(found)


def _packed(rows: Dataset, budget: int, seed: int) -> Iterator[Pass]:
    ids, labels = TokenColumn(rows, "input_ids"), TokenColumn(rows, "labels")
    for members in pack_rows(rows, budget, seed):
        trained = sum(int((labels[i][1:] != IGNORE).sum()) for i in members)
        yield _row(distinct_runs([sortable(ids[i]) for i in members]), trained)


def _trees(rows: Dataset, size: int) -> Iterator[Pass]:
    prompt, *sides = (TokenColumn(rows, name) for name in DPO)
    for start in range(0, len(rows), size):
        numbers = range(start, min(start + size, len(rows)))
        sequences = [sortable(prompt[i]) + sortable(side[i]) for i in numbers for side in sides]
        yield _row(distinct_runs(sequences), sum(len(side[i]) for i in numbers for side in sides))


def _row(runs: Sequence[tuple[int, int]], predicted: int) -> Pass:
    """Return the pass over a tree whose tokens have the depths of ``runs`` (see `distinct_runs`).

    A slice has as many keys as the depth of its first token, rounded up, and its own tokens (see `slices`).
    """
    depths = np.concatenate([np.arange(start, start + added) for start, added in runs])
    keys = -(-depths[::SLICE] // SLICE) * SLICE + SLICE
    return Pass(len(depths), predicted, SLICE * int(keys.sum()))


def _rollouts(recipe: TrainRecipe, settings: RLRecipe, questions: int) -> Epoch:
    """Return the passes over the rollouts of an epoch; those of an incomplete last generation are left out."""
    each = recipe.gradient_accumulation * settings.updates
    passes = questions * settings.group // (recipe.batch_size * each) * each
    step = SLICE if recipe.trees else PADDING
    length = step * math.ceil(recipe.max_tokens / step)
    tokens = recipe.batch_size * length
    if recipe.trees:  # at the most: rollouts that share nothing
        tokens, length = few_lengths(tokens), length + SLICE
    return Epoch(questions, passes, passes * tokens, passes * tokens, (Pass(tokens, tokens, tokens * length),))


def _padded(examples: int, lengths: np.ndarray, size: int) -> Epoch:
    """Return the epoch of padded batches, whose logits are computed at all tokens.

    The order is random, so that the largest pass is that of the longest row, and the sum counts each row alone.
    """
    rounded = -(-lengths // PADDING) * PADDING
    sequences = len(lengths) // examples  # a pair has two
    longest = int(rounded.max())
    largest = sequences * min(size, examples) * longest
    tokens = int(rounded.sum())
    return Epoch(examples, math.ceil(examples / size), tokens, tokens, (Pass(largest, largest, largest * longest),))


def _apart(rows: Dataset, size: int) -> Epoch:
    """Return the epoch of an encoder-decoder, whose two sides are padded by themselves.

    The largest pass is that of the longest prompt and the longest target, which may meet in a batch.
    """
    prompts, targets = (
        -(-TokenColumn(rows, name).lengths() // PADDING) * PADDING for name in ("input_ids", "target_ids")
    )
    batch, read, written = min(size, len(rows)), int(prompts.max()), int(targets.max())
    pairs = batch * (read * read + written * written + read * written)
    return Epoch(
        examples=len(rows),
        passes=math.ceil(len(rows) / size),
        tokens=int(prompts.sum() + targets.sum()),
        predicted=int(targets.sum()),
        largest=(Pass(batch * (read + written), batch * written, pairs),),
    )
