"""Truncation: trailing segments are removed whole, a trained segment is never cut, and all counts are exact."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.training import TOKENIZER, sft_record, stretches, write

from rag_train.errors import UserError
from rag_train.schema import Segment, SFTRecord
from rag_train.training.data import sft_rows
from rag_train.training.masking import IGNORE


def example(segments: list[Segment], prompt: str = "Why?\n", complete: bool = False) -> SFTRecord:
    completion = "".join(segment.text for segment in segments)
    return SFTRecord(
        id="0", prompt=prompt, completion=completion, segments=segments, source="gold", complete=complete
    )


texts = st.text(alphabet="ab .?\n:é漢", min_size=1, max_size=12)
documents = st.lists(st.tuples(texts, st.booleans()), min_size=1, max_size=8)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(documents, min_size=1, max_size=4), st.integers(1, 60), st.booleans())
def test_truncated_example_ends_with_trained_segment(
    parts: list[list[tuple[str, bool]]], max_tokens: int, complete: bool
):
    records = [
        example([Segment(text=text, trained=trained) for text, trained in document], complete=complete)
        for document in parts
    ]
    trained = [record for record in records if any(segment.trained for segment in record.segments)]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "sft.jsonl", records)
        try:
            rows, report = sft_rows(path, TOKENIZER, max_tokens=max_tokens, chat=False)
        except UserError as error:
            untrained = len(records) - len(trained)
            assert f"({untrained} without a trained token, {len(trained)} longer" in str(error)
            return
    shortened, kept = 0, iter(rows)
    fits = [_longest(record, max_tokens) for record in trained]
    for record, (count, whole) in ((r, fit) for r, fit in zip(trained, fits, strict=True) if fit):
        row = next(kept)
        text = record.prompt + "".join(segment.text for segment in record.segments[:count])
        end = "<|end|>" if whole and complete else ""
        assert "".join(stretch for _, stretch in stretches(row["input_ids"], row["labels"])) == text + end
        assert len(row["input_ids"]) <= max_tokens
        shortened += not whole
    assert next(kept, None) is None
    assert report.too_long == sum(fit is None for fit in fits)
    assert (report.examples, report.shortened) == (len(rows), shortened)
    assert report.untrained == len(records) - len(trained)
    assert report.tokens == sum(len(row["input_ids"]) for row in rows)
    assert report.trained_tokens == sum(label != IGNORE for row in rows for label in row["labels"])


def test_an_example_without_a_trained_token_is_left_out_and_counted(tmp_path: Path):
    """Packed rows had no place for its loss, and padded ones counted a loss of 0."""
    empty = example([Segment(text="Why?", trained=False), Segment(text="", trained=True)], prompt="")
    first = [Segment(text="W", trained=True), Segment(text="hy?", trained=False)]  # nothing predicts its token
    without = [empty, example(first, prompt=""), example([Segment(text="Why?", trained=False)])]
    path = write(tmp_path / "sft.jsonl", [*without, sft_record(2)])
    rows, report = sft_rows(path, TOKENIZER, max_tokens=500, chat=False)
    assert (len(rows), report.examples, report.untrained) == (1, 1, 3)
    for records, most in ((without, 500), ([*without, sft_record(1)], 20)):
        problem = rf"no example is left \(3 without a trained token, {len(records) - 3} longer than {most} tokens"
        with pytest.raises(UserError, match=problem):
            sft_rows(write(tmp_path / "none.jsonl", records), TOKENIZER, max_tokens=most, chat=False)


def _longest(record: SFTRecord, max_tokens: int) -> tuple[int, bool] | None:
    """Return the largest number of segments that fit and end with a trained one, and whether no trained segment is
    missing."""
    best = None
    for count, segment in enumerate(record.segments, 1):
        whole = not any(later.trained for later in record.segments[count:])
        text = record.prompt + "".join(kept.text for kept in record.segments[:count])
        size = len(TOKENIZER(text, add_special_tokens=False).input_ids) + (whole and record.complete)
        if segment.trained and size <= max_tokens:
            best = count, whole
    return best
