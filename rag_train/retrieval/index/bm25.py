"""BM25 search in the manner of bm25s (Lù 2024): scores are computed at indexing time; a search only adds them up.

The tests compare the results with bm25s. The package itself is not used because it builds indexes in memory and
its top-k selection orders equal scores arbitrarily, while training sets must be reproducible.

bm25s (for its stop words) and numba are imported on first use, because they take long.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from pydantic import StrictStr, TypeAdapter, ValidationError

from rag_train.errors import UserError
from rag_train.provenance import cores
from rag_train.retrieval.corpus import PassageStore
from rag_train.retrieval.index.bm25_build import FORMAT, VERSION, VOCABULARY, build_bm25
from rag_train.retrieval.index.directory import (
    MANIFEST,
    OFFSETS,
    PASSAGES,
    changed,
    inconsistent,
    load_array,
    open_passages,
    read_manifest,
    rising,
    unreadable,
)
from rag_train.retrieval.index.text import LONGEST_QUERY, BM25Config, tokenizer
from rag_train.schema import Passage

_ARRAYS = {"data": np.float32, "indices": np.int32, "indptr": np.int64}
_FILES = {PASSAGES, OFFSETS, VOCABULARY, *(f"{name}.npy" for name in _ARRAYS)}

_CONFIG = TypeAdapter(BM25Config)
_TOKENS = TypeAdapter(list[StrictStr])
_BLOCK = 1 << 24
"""Postings checked at a time."""


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the positions of the ``k`` highest positive scores, best first; ties are ordered by position."""
    hits = np.flatnonzero(scores > 0)
    if len(hits) > k:
        threshold = np.partition(scores[hits], -k)[-k]
        hits = hits[scores[hits] >= threshold]
    return hits[np.argsort(-scores[hits], kind="stable")[:k]]


class BM25Index:
    """A BM25 index with its passages, created by `build` or `load`.

    Attributes:
        config: the settings it was built with.
        passages: the passages in corpus order.
        corpus_sha256: SHA-256 of the passages as JSON Lines; identifies the corpus in records made with this index.
    """

    name = "bm25"
    threads = cores()
    """Number of searches at the same time: they do not hold the GIL."""

    def __init__(
        self,
        config: BM25Config,
        passages: PassageStore,
        vocabulary: dict[str, int],
        postings: dict[str, np.ndarray],
        corpus_sha256: str,
    ):
        self.config = config
        self.passages = passages
        self.corpus_sha256 = corpus_sha256
        self._vocabulary = vocabulary
        self._postings = postings

    def __len__(self) -> int:
        return len(self.passages)

    @property
    def identity(self) -> Any:
        settings = asdict(self.config)
        return {"index": FORMAT, "version": VERSION, "config": settings, "corpus_sha256": self.corpus_sha256}

    @classmethod
    def build(cls, passages: Iterable[Passage], config: BM25Config | None = None) -> BM25Index:
        """Index passages that fit in memory. To index a corpus of any size into a directory, use `build_bm25`.

        Raises:
            UserError: if there are no passages.
        """
        with TemporaryDirectory() as directory:
            build_bm25(passages, Path(directory, "index"), config)
            return cls.load(Path(directory, "index"), mmap=False)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return for each query at most ``k`` passages that share a token with it, best first, with scores.

        Equal scores are in corpus order. A query without a known token gets an empty list. Only the first
        `LONGEST_QUERY` characters of a query count.

        Raises:
            ValueError: if ``k`` is less than 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one passage")
        tokenize = tokenizer(self.config)
        return [self._search(tokenize(query[:LONGEST_QUERY]), k) for query in queries]

    def _search(self, tokens: list[str], k: int) -> list[Passage]:
        known = Counter(self._vocabulary[t] for t in tokens if t in self._vocabulary)
        scores = np.zeros(len(self), dtype=np.float32)
        words, counts = np.array(list(known.items()), dtype=np.int64).reshape(-1, 2).T
        _adder()(scores, words, counts, *(self._postings[name] for name in _ARRAYS))
        return [self.passages[i].model_copy(update={"score": float(scores[i])}) for i in top_k(scores, k)]

    @classmethod
    def load(cls, directory: str | Path, mmap: bool = True) -> BM25Index:
        """Open a saved index after checking the size and SHA-256 of every file.

        Args:
            directory: a directory written by `build_bm25`.
            mmap: keep postings and passages on disk and read only the vocabulary into memory.

        Raises:
            UserError: if the directory is missing, not a BM25 index, incomplete, damaged, or of another version.
        """
        directory = Path(directory)
        manifest = read_manifest(directory, FORMAT, VERSION, _FILES)
        try:
            config = _CONFIG.validate_json(json.dumps(manifest.config), strict=True, extra="forbid")
        except (ValidationError, UserError) as error:
            raise changed(directory, MANIFEST) from error
        try:
            postings = {
                name: load_array(directory, f"{name}.npy", np.dtype(dtype), mmap) for name, dtype in _ARRAYS.items()
            }
            passages = open_passages(directory, manifest.passages, in_memory=not mmap)
            tokens = _TOKENS.validate_json((directory / VOCABULARY).read_bytes())
        except ValidationError as error:
            raise inconsistent(directory, VOCABULARY) from error
        except OSError as error:
            raise unreadable(directory, error) from error
        _check_postings(directory, len(tokens), manifest.passages, **postings)
        vocabulary = {token: i for i, token in enumerate(tokens)}
        return cls(config, passages, vocabulary, postings, manifest.corpus_sha256)


def _check_postings(
    directory: Path, tokens: int, passages: int, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray
) -> None:
    """Raise UserError if the compiled loop, which checks no bounds, would read or write outside of the arrays."""
    if len(indptr) != tokens + 1 or not rising(indptr, len(indices)):
        raise inconsistent(directory, "indptr.npy")
    if len(data) != len(indices):
        raise inconsistent(directory, "data.npy")
    for start in range(0, len(indices), _BLOCK):
        block = indices[start : start + _BLOCK]
        if block.min() < 0 or block.max() >= passages:
            raise inconsistent(directory, "indices.npy")


@cache
def _adder() -> Callable[..., None]:
    import numba

    @numba.njit(nogil=True)
    def add_scores(
        scores: np.ndarray,
        tokens: np.ndarray,
        counts: np.ndarray,
        data: np.ndarray,
        indices: np.ndarray,
        indptr: np.ndarray,
    ) -> None:
        """Add each token's column of the sparse (passages x tokens) matrix to ``scores``, as often as it occurs."""
        for token, count in zip(tokens, counts):  # noqa: B905 (numba has no strict)
            for i in range(indptr[token], indptr[token + 1]):
                scores[indices[i]] += count * data[i]

    return add_scores
