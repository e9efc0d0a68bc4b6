"""Statistics of a file of records, for its card and for `rag-train data check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rag_train.data_synth.inspect.records import described
from rag_train.formats.prompting import as_turn
from rag_train.jobs.items import Rejected
from rag_train.schema import PreferencePair, Question, Record, Segment, SFTRecord, Trajectory

BINS = 12
"""Approximate number of bins in a histogram."""
CHUNK = 1000
"""Number of records tokenised at once."""


class RecordSize(NamedTuple):
    """Sizes of one record: what ``max_tokens`` limits, all text read in training, and the trained part of it."""

    length: int
    read: int
    trained: int


@dataclass(frozen=True)
class Bin:
    """Number of records with lengths from ``low`` up to, not including, ``high``."""

    low: int
    high: int
    records: int


@dataclass(frozen=True)
class Statistics:
    """Statistics of records; lengths are in ``unit`` (tokens or characters)."""

    records: int
    groups: dict[str, int]
    """Number of records by task and outcome (see `Described`)."""
    unit: str
    lengths: dict[str, int]
    """Minimum, median, 90th and 99th percentile, and maximum."""
    histogram: list[Bin]
    trained_share: float | None
    """Share of the text read in training that is trained; None if no text is trained."""


def statistics_of(records: Sequence[Record], tokenizer: Any = None) -> Statistics:
    """Compute the statistics of ``records``, in tokens if a tokenizer is given, or else in characters.

    Texts are tokenised as in training: as chat turns if the tokenizer has a chat template.
    """
    sizes = list(_sizes(records, tokenizer))
    lengths = sorted(size.length for size in sizes)
    read, trained = sum(size.read for size in sizes), sum(size.trained for size in sizes)
    quantiles = {"least": 0.0, "median": 0.5, "90%": 0.9, "99%": 0.99, "greatest": 1.0}
    return Statistics(
        records=len(records),
        groups=dict(Counter(", ".join(described(record)[:2]) for record in records).most_common()),
        unit="tokens" if tokenizer else "characters",
        lengths={name: lengths[round(q * (len(lengths) - 1))] for name, q in quantiles.items()} if lengths else {},
        histogram=histogram(lengths),
        trained_share=trained / read if trained else None,
    )


def histogram(lengths: Sequence[int]) -> list[Bin]:
    """Return bins of one round width, from the smallest length to the largest."""
    if not lengths:
        return []
    narrowest = max(lengths) / BINS
    power = 10 ** max(0, len(str(int(narrowest))) - 1)
    width = next(m * power for m in (1, 2, 5, 10) if m * power > narrowest)
    counts = Counter(length // width for length in lengths)
    return [Bin(i * width, (i + 1) * width, counts[i]) for i in range(min(counts), max(counts) + 1)]


def _sizes(records: Sequence[Record], tokenizer: Any) -> Iterator[RecordSize]:
    for start in range(0, len(records), CHUNK):
        chunk = records[start : start + CHUNK]
        texts = [list(_texts(record, tokenizer)) for record in chunk]
        append_eos = isinstance(chunk[0], SFTRecord)  # as in training
        counts = iter(_counts([text for record_texts in texts for text in record_texts], tokenizer, append_eos))
        for record_texts in texts:
            lengths, trained = zip(*(next(counts) for _ in record_texts), strict=True)
            yield RecordSize(max(lengths), sum(lengths), sum(trained))


def _texts(record: Record, tokenizer: Any) -> Iterator[list[Segment]]:
    """Yield the texts of ``record`` that a model reads in training: one text, or two for a pair."""
    match record:
        case SFTRecord():
            if tokenizer:
                from rag_train.training.data import document

                yield document(tokenizer, record)
            else:
                yield [Segment(text=record.prompt, trained=False), *record.segments]
        case PreferencePair():
            start = record.history_start
            turn = as_turn(tokenizer, record.prompt[:start]) if tokenizer else record.prompt[:start]
            head = Segment(text=turn + record.prompt[start:], trained=False)
            yield from ([head, Segment(text=text, trained=True)] for text in (record.chosen, record.rejected))
        case Trajectory() | Question():
            yield [Segment(text=record.question, trained=False)]
        case Rejected():
            yield [Segment(text=record.text, trained=False)]


def _counts(texts: Sequence[Sequence[Segment]], tokenizer: Any, append_eos: bool) -> Iterator[tuple[int, int]]:
    """Yield (length, trained length) of each text."""
    if tokenizer:
        from rag_train.training.masking import IGNORE, encode_segments

        for ids, labels in encode_segments(tokenizer, texts, append_eos=append_eos):
            yield len(ids), sum(label != IGNORE for label in labels)
    else:
        for segments in texts:
            yield (
                sum(len(segment.text) for segment in segments),
                sum(len(segment.text) for segment in segments if segment.trained),
            )
