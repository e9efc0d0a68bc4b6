"""BM25 search in the manner of bm25s (Lù 2024): scores are computed at indexing time; a search only adds them up.

The tests compare the results with bm25s. The package itself is not used because it builds indexes in memory and
its top-k selection orders equal scores arbitrarily, while training sets must be reproducible.

bm25s (for its stop words) and numba are imported on first use: vLLM's workers import the main script of the process
that starts them, and on CPUs they fail if llvmlite is already loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from rag_train.errors import UserError
from rag_train.retrieval.corpus import PassageStore
from rag_train.retrieval.index.bm25_build import FORMAT, VERSION, VOCABULARY, build_bm25
from rag_train.retrieval.index.directory import OFFSETS, PASSAGES, changed, open_passages, read_manifest, unreadable
from rag_train.retrieval.index.text import BM25Config, tokenizer
from rag_train.schema import Passage

_ARRAYS = ("data", "indices", "indptr")
_FILES = {PASSAGES, OFFSETS, VOCABULARY, *(f"{name}.npy" for name in _ARRAYS)}


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
    threads = min(4, os.cpu_count() or 1)
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

        Equal scores are in corpus order. A query without a known token gets an empty list.

        Raises:
            ValueError: if ``k`` is less than 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one passage")
        tokenize = tokenizer(self.config)
        return [self._search(tokenize(query), k) for query in queries]

    def _search(self, tokens: list[str], k: int) -> list[Passage]:
        known = np.array([self._vocabulary[t] for t in tokens if t in self._vocabulary], dtype=np.int64)
        scores = np.zeros(len(self), dtype=np.float32)
        _adder()(scores, known, *(self._postings[name] for name in _ARRAYS))
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
            config = BM25Config(**manifest.config)
            postings = {
                name: np.load(directory / f"{name}.npy", mmap_mode="r" if mmap else None) for name in _ARRAYS
            }
            tokens = json.loads((directory / VOCABULARY).read_text(encoding="utf-8"))
            passages = open_passages(directory, in_memory=not mmap)
        except (TypeError, UserError) as error:
            raise changed(directory, "index.json") from error
        except OSError as error:
            raise unreadable(directory, error) from error
        vocabulary = {token: i for i, token in enumerate(tokens)}
        return cls(config, passages, vocabulary, postings, manifest.corpus_sha256)


@cache
def _adder() -> Callable[..., None]:
    import numba

    @numba.njit(nogil=True)
    def add_scores(
        scores: np.ndarray, tokens: np.ndarray, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray
    ) -> None:
        """Add each token's column of the sparse (passages x tokens) score matrix to ``scores``."""
        for token in tokens:
            for i in range(indptr[token], indptr[token + 1]):
                scores[indices[i]] += data[i]

    return add_scores
