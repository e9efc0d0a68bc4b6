"""BM25 as bm25s does it (Lù 2024): scores are computed when indexing, and a search only adds them up.

bm25s is the reference that the tests compare with. It is not used itself, because it builds in memory and its top-k
selection leaves the order of equal scores to chance, and a training set must come out the same twice.

bm25s (for its stop words) and numba are imported when first used: vLLM's workers import the main script of whoever
starts them, and on a CPU they fail on finding llvmlite there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import Stemmer

from rag_train.errors import UserError
from rag_train.retrieval.corpus import PassageStore
from rag_train.retrieval.directory import OFFSETS, PASSAGES, changed, open_passages, read_manifest, unreadable
from rag_train.schema import Passage

FORMAT = "rag-train-bm25"
VERSION = 2

VOCABULARY = "vocabulary.json"

_ARRAYS = ("data", "indices", "indptr")
_FILES = {PASSAGES, OFFSETS, VOCABULARY, *(f"{name}.npy" for name in _ARRAYS)}

_WORD = re.compile(r"\b\w\w+\b")


@dataclass(frozen=True)
class BM25Config:
    """How text becomes tokens, and BM25's parameters.

    Attributes:
        lowercase: whether case is ignored.
        stopwords: ``en`` drops Lucene's 33 English stop words.
        stemmer: ``english`` reduces words to their stems by Snowball's English stemmer.
        k1: how slowly repetitions of a term saturate, above 0.
        b: how much long passages are discounted, from 0 to 1.
        method: the formula; ``lucene`` is that of Lucene, Elasticsearch and Pyserini.
    """

    lowercase: bool = True
    stopwords: Literal["en"] | None = "en"
    stemmer: Literal["english"] | None = "english"
    k1: float = 1.5
    b: float = 0.75
    method: Literal["lucene"] = "lucene"

    def __post_init__(self) -> None:
        if not 0 < self.k1 < float("inf"):
            raise UserError(f"bm25: k1 is {self.k1}; give a number above 0, such as 1.5")
        if not 0 <= self.b <= 1:
            raise UserError(f"bm25: b is {self.b}; give a number from 0 to 1, such as 0.75")


def tokenizer(config: BM25Config) -> Callable[[str], list[str]]:
    """A function from text to tokens: words of two characters and more, less stop words, stemmed.

    Make one for each thread: a Snowball stemmer must not be shared.
    """
    from bm25s.stopwords import STOPWORDS_EN

    stopwords = frozenset(STOPWORDS_EN if config.stopwords else ())
    stem = Stemmer.Stemmer(config.stemmer).stemWords if config.stemmer else list

    def tokenize(text: str) -> list[str]:
        words = _WORD.findall(text.lower() if config.lowercase else text)
        return stem([word for word in words if word not in stopwords])

    return tokenize


def indexed_text(passage: Passage) -> str:
    """What of a passage is searched: its title and its text."""
    return f"{passage.title} {passage.text}"


def top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the ``k`` highest positive scores, best first, equal ones in order of position."""
    hits = np.flatnonzero(scores > 0)
    if len(hits) > k:
        threshold = np.partition(scores[hits], -k)[-k]
        hits = hits[scores[hits] >= threshold]
    return hits[np.argsort(-scores[hits], kind="stable")[:k]]


class BM25Index:
    """A BM25 index with its passages; make one by `build` or `load`.

    Attributes:
        config: how it was built.
        passages: the passages in corpus order.
        corpus_sha256: of the passages as JSON Lines; it names the corpus in records made with this index.
    """

    name = "bm25"

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
        """Index passages that fit in memory; `build_bm25` indexes any number into a directory.

        Raises:
            UserError: if there are no passages.
        """
        from rag_train.retrieval.bm25_build import build_bm25

        with TemporaryDirectory() as directory:
            build_bm25(passages, Path(directory, "index"), config)
            return cls.load(Path(directory, "index"), mmap=False)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """For each query at most ``k`` passages that share a token with it, best first, with scores.

        Equal scores are in corpus order. A query without any known token gets an empty list.

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
        """Open a saved index after checking every file's size and SHA-256.

        Args:
            directory: what `build_bm25` wrote.
            mmap: leave postings and passages on disk; only the vocabulary is read into memory.

        Raises:
            UserError: if the directory is missing, is no index, is incomplete or damaged, or of another version.
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
