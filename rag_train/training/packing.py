"""Packing of sequences into rows: sequences with a common prefix share a row, the others are placed at random."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

OPEN_ROWS = 16
"""Rows that are filled at the same time."""
SHARED = 4
"""Sequences are a family if they share at least 1 / ``SHARED`` of their tokens."""


class _Row:
    """A row that is being filled: its sequences, and their tokens as a trie."""

    def __init__(self) -> None:
        self.members: list[int] = []
        self.tokens = 0
        self._trie: dict[int, Any] = {}

    def shared(self, sequence: Sequence[int]) -> int:
        """Return the number of leading tokens of ``sequence`` that the row already has."""
        node = self._trie
        for depth, token in enumerate(sequence):
            if token not in node:
                return depth
            node = node[token]
        return len(sequence)

    def add(self, member: int, sequence: Sequence[int]) -> None:
        self.members.append(member)
        self.tokens += len(sequence) - self.shared(sequence)
        node = self._trie
        for token in sequence:
            node = node.setdefault(token, {})


def pack(sequences: Sequence[list[int]], budget: int, seed: int) -> list[list[int]]:
    """Distribute ``sequences`` over rows, and return the indices of each row's sequences.

    A row has at most ``budget`` tokens, where every distinct prefix counts once, or is a single longer sequence.

    Sequences with a common prefix form a family (see `_families`). Families are placed in random order (``seed``):
    each in the row that already has the longest part of its prefix, and among equals in the fullest row with enough
    space. ``OPEN_ROWS`` rows are filled at a time (bounded-space best fit; Csirik and Johnson 2001), so that the
    time is linear in the number of sequences and the rows are as mixed as the data.
    """
    families = _families(sequences, budget)
    Random(seed).shuffle(families)
    done, filling = [], []
    for family, tokens in families:
        first = sequences[family[0]]
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
                done.append(fullest)
            row = _Row()
            filling.append(row)
        for member in family:
            row.add(member, sequences[member])
    return [row.members for row in done + filling]


def _families(sequences: Sequence[list[int]], budget: int) -> list[tuple[list[int], int]]:
    """Group sequences into families, and return each with its number of tokens when prefixes are computed once.

    A family consists of neighbours in lexicographic order that have at least 1 / ``SHARED`` of their tokens as a
    common prefix; it has at most ``budget`` tokens. The prefix that a sequence shares even with a sequence a whole
    row away, such as an instruction, is not counted, because any row would share it.
    """
    order = sorted(range(len(sequences)), key=lambda i: sequences[i])
    away = max(1, round(budget * len(sequences) / max(1, sum(map(len, sequences)))))
    families: list[tuple[list[int], int]] = []
    for place, i in enumerate(order):
        ids = sequences[i]
        if place:
            common = _common(sequences[order[place - 1]], ids)
            far = _common(sequences[order[place - away]], ids) if place >= away else 0
            members, tokens = families[-1]
            tokens += len(ids) - common
            if SHARED * (common - far) >= len(ids) - far and tokens <= budget:
                members.append(i)
                families[-1] = (members, tokens)
                continue
        families.append(([i], len(ids)))
    return families


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    depth = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        depth += 1
    return depth
