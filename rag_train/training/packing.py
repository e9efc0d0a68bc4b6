"""Packing of sequences into rows: sequences with a common prefix share a row, the others are placed at random."""

from __future__ import annotations

from array import array
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import cmp_to_key, lru_cache
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from datasets import Dataset

from rag_train.training.rows import TokenColumn

OPEN_ROWS = 16
"""Rows that are filled at the same time."""
SHARED = 4
"""Sequences are a family if they share at least 1 / ``SHARED`` of their tokens."""

Read = Callable[[int], bytes]
"""Returns a sequence as bytes that sort like its tokens (see `sortable`)."""


class _Row:
    """A row that is being filled: its sequences in order of placement and in lexicographic order."""

    def __init__(self, read: Read) -> None:
        self.members = array("q")
        self.tokens = 0
        self._read = read
        self._ordered: list[int] = []

    def shared(self, sequence: bytes) -> int:
        """Return the number of leading tokens of ``sequence`` that the row already has."""
        place = bisect(self._ordered, sequence, key=self._read)
        neighbours = self._ordered[max(0, place - 1) : place + 1]
        return max((_common(self._read(member), sequence) for member in neighbours), default=0)

    def add(self, member: int) -> None:
        sequence = self._read(member)
        self.tokens += len(sequence) // 4 - self.shared(sequence)
        self.members.append(member)
        self._ordered.insert(bisect(self._ordered, sequence, key=self._read), member)


def pack(sequences: Sequence[Any], budget: int, seed: int) -> list[array[int]]:
    """Distribute ``sequences`` of token ids over rows, and return the indices of each row's sequences.

    A row has at most ``budget`` tokens, where every distinct prefix counts once, or is a single longer sequence.

    Sequences with a common prefix form a family (see `_families`). Families are placed in random order (``seed``):
    each in the row that already has the longest part of its prefix, and among equals in the fullest row with enough
    space. ``OPEN_ROWS`` rows are filled at a time (bounded-space best fit; Csirik and Johnson 2001), so that the
    time is linear in the number of sequences and the rows are as mixed as the data.

    Sequences are read one at a time, as often as needed: memory is used for their indices and for a few of them.
    """

    @lru_cache(maxsize=256)
    def read(i: int) -> bytes:
        return sortable(sequences[i])

    order = array("q", sorted(range(len(sequences)), key=cmp_to_key(lambda i, j: _compare(read(i), read(j)))))
    starts, sizes = _families(order, read, budget)
    places = list(range(len(starts)))
    Random(seed).shuffle(places)
    starts.append(len(order))
    done: list[array[int]] = []
    filling: list[_Row] = []
    for place in places:
        family, tokens = order[starts[place] : starts[place + 1]], sizes[place]
        first = read(family[0])
        fitting = [
            (shared, row.tokens, row)
            for row in filling
            if row.tokens + tokens - (shared := row.shared(first)) <= budget
        ]
        if fitting:
            row = max(fitting, key=lambda fit: fit[:2])[2]
        else:
            if len(filling) == OPEN_ROWS:
                fullest = max(filling, key=lambda row: row.tokens)
                filling.remove(fullest)
                done.append(fullest.members)
            row = _Row(read)
            filling.append(row)
        for member in family:
            row.add(member)
    return done + [row.members for row in filling]


@lru_cache(maxsize=1)  # the plan of a run and its trainer pack the same rows, which takes minutes for 100,000
def pack_rows(rows: Dataset, budget: int, seed: int) -> list[array[int]]:
    """Return the rows of `pack` for the examples in ``rows``."""
    return pack(TokenColumn(rows, "input_ids"), budget, seed)


def _families(order: Sequence[int], read: Read, budget: int) -> tuple[array[int], array[int]]:
    """Group sequences into families; return where each begins in ``order``, and its tokens with prefixes once.

    A family consists of neighbours in lexicographic order (``order``) that have at least 1 / ``SHARED`` of their
    tokens as a common prefix; it has at most ``budget`` tokens. The prefix that a sequence shares even with a
    sequence a whole row away, such as an instruction, is not counted, because any row would share it.
    """
    total = sum(len(read(i)) // 4 for i in order)
    away = max(1, round(budget * len(order) / max(1, total)))
    starts, sizes = array("q"), array("q")
    for place, i in enumerate(order):
        ids = read(i)
        length = len(ids) // 4
        if place:
            common = _common(read(order[place - 1]), ids)
            far = _common(read(order[place - away]), ids) if place >= away else 0
            tokens = sizes[-1] + length - common
            if SHARED * (common - far) >= length - far and tokens <= budget:
                sizes[-1] = tokens
                continue
        starts.append(place)
        sizes.append(length)
    return starts, sizes


def distinct_runs(sequences: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return, for each of the sorted ``sequences`` (see `sortable`), how many tokens it shares with the one before
    it, and how many it adds to the tree."""
    ordered = [b"", *sorted(sequences)]
    shared = [_common(a, b) for a, b in pairwise(ordered)]
    return [(common, len(b) // 4 - common) for common, b in zip(shared, ordered[1:], strict=True)]


def sortable(tokens: Any) -> bytes:
    """Return token ids as bytes, four for each, whose order is the lexicographic order of the ids."""
    return np.asarray(tokens, dtype=">i4").tobytes()


def _compare(a: bytes, b: bytes) -> int:
    return (a > b) - (a < b)


def _common(a: bytes, b: bytes) -> int:
    """Return the number of leading tokens that are equal."""
    count = min(len(a), len(b)) // 4
    differ = np.frombuffer(a, np.int32, count) != np.frombuffer(b, np.int32, count)
    first = int(differ.argmax()) if count else 0
    return first if count and differ[first] else count
