"""The passes of an epoch are those that the trainers compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists
from support.training import TOKENIZER, recipe_in, write

from rag_train.schema import Segment, SFTRecord
from rag_train.training.data import dpo_rows, sft_rows
from rag_train.training.epoch import _row, epoch
from rag_train.training.packing import distinct_runs, pack_rows, sortable
from rag_train.training.recipe import DPORecipe, SFTRecipe
from rag_train.training.rows import LazyRows
from rag_train.training.sft import packed_rows
from rag_train.training.tree import SLICE, labelled_row, padded, slices, tensors
from rag_train.training.tree_dpo import tree_rows


def lengths(rows: LazyRows) -> list[tuple[int, int]]:
    """Return the tokens and logits of each row as the model gets it."""
    filled = (padded(tensors([rows[i]])) for i in range(len(rows)))
    return [(len(row["input_ids"]), len(row["at"])) for row in filled]


@pytest.mark.parametrize(("stage", "size"), [("sft", 300), ("sft", 600), ("sft", 1100), ("dpo", 1), ("dpo", 3)])
def test_rows_are_counted_as_they_are_padded(work: Path, tmp_path: Path, stage: str, size: int):
    """The estimate took the budget itself, and the mean share of trained tokens."""
    pack_rows.cache_clear()
    if stage == "sft":
        recipe = recipe_in(work, tmp_path / "out", batch_size=1, sft=SFTRecipe(pack_tokens=size))
        rows, _ = sft_rows(recipe.data, TOKENIZER, max_tokens=500, chat=False)
        counted, real = epoch(recipe, rows), lengths(packed_rows(rows, size, recipe.seed))
        assert pack_rows.cache_info().misses == 1
    else:
        recipe = recipe_in(work, tmp_path / "out", stage="dpo", batch_size=size, dpo=DPORecipe(layout="tree"))
        rows, _ = dpo_rows(recipe.data, TOKENIZER, max_tokens=500, chat=False)
        counted, real = epoch(recipe, rows), lengths(tree_rows(rows, size))
        pairs = epoch(replace(recipe, dpo=DPORecipe()), rows)
        assert counted.tokens <= pairs.tokens and pairs.passes == counted.passes
    tokens, predicted = zip(*real, strict=True)
    assert (counted.passes, counted.tokens, counted.predicted) == (len(real), sum(tokens), sum(predicted))
    assert {each[:2] for each in counted.largest} <= set(real)
    assert max(each.tokens for each in counted.largest) == max(tokens)
    assert max(each.predicted for each in counted.largest) == max(predicted)


def test_padded_batches_are_bounded_by_their_longest_row(work: Path, tmp_path: Path):
    rows, report = sft_rows(work / "sft.jsonl", TOKENIZER, max_tokens=500, chat=False)
    counted = epoch(recipe_in(work, tmp_path / "out", batch_size=3), rows)
    longest, (largest,) = max(len(row["input_ids"]) for row in rows), counted.largest
    assert 0 <= largest.tokens - 3 * longest < 3 * 64 and largest.predicted == largest.tokens
    assert 0 <= counted.tokens - report.tokens < 64 * len(rows)


def test_one_row_of_answers_needs_more_logits_than_the_mean(work: Path, tmp_path: Path):
    """T5: the mean share of trained tokens was taken for the largest row."""
    masked, trained = Segment(text="context " * 60, trained=False), Segment(text="answer " * 60, trained=True)

    def record(i: int, segments: list[Segment]) -> SFTRecord:
        completion = "".join(segment.text for segment in segments)
        return SFTRecord(id=str(i), prompt=f"{i}?\n", completion=completion, segments=segments, source="gold")

    few = Segment(text="a", trained=True)
    records = [record(i, [masked, few] if i else [trained]) for i in range(12)]
    rows, report = sft_rows(write(tmp_path / "d.jsonl", records), TOKENIZER, max_tokens=2000, chat=False)
    recipe = recipe_in(work, tmp_path / "out", batch_size=1, sft=SFTRecipe(pack_tokens=500))
    counted = epoch(recipe, rows)
    most, mean = max(each.predicted for each in counted.largest), report.trained_tokens / report.tokens
    assert most > 4 * mean * max(each.tokens for each in counted.largest)


@given(
    lists(lists(integers(0, 1), min_size=1, max_size=400).map(lambda tokens: [5, *tokens]), min_size=1, max_size=6)
)
def test_attended_pairs_are_those_of_sliced_attention(sequences: list[list[int]]):
    row = tensors([labelled_row((ids, ids) for ids in sorted(sequences))])
    filled = padded(row)
    real = slices(filled["last"], filled["positions"])[: -(-len(row["last"]) // SLICE)]
    assert _row(distinct_runs([sortable(each) for each in sequences]), 0).attended == sum(
        part.mask.numel() for part in real
    )
