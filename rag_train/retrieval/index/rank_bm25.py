"""BM25 on the rank-bm25 package: the reference implementation for tests and benchmarks of `BM25Index`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import rank_bm25

from rag_train.errors import UserError
from rag_train.retrieval.index.bm25 import top_k
from rag_train.retrieval.index.text import BM25Config, indexed_text, tokenizer
from rag_train.schema import Passage


class _LuceneBM25(rank_bm25.BM25Okapi):
    """BM25Okapi with Lucene's inverse document frequency, which is never negative.

    The term-frequency part of BM25Okapi is Lucene's times ``k1 + 1``, a constant that Lucene omits because it does
    not change the ranking. Dividing by it makes the scores equal, not only the ranks.
    """

    def _calc_idf(self, nd: dict[str, int]) -> None:
        for word, frequency in nd.items():
            idf = math.log(1 + (self.corpus_size - frequency + 0.5) / (frequency + 0.5))
            self.idf[word] = idf / (self.k1 + 1)


class RankBM25Index:
    """A BM25 index in memory, on NumPy and Python dictionaries, for small corpora and for comparison.

    The time of a query grows linearly with the corpus. Tokens and scores equal those of `BM25Index` with the same
    config, except for rounding (float64 here, float32 there). The scores of rank-bm25's own BM25Okapi differ: it
    gives words in more than half of the passages a quarter of the mean inverse document frequency, so that they can
    outweigh rarer words.

    Args:
        passages: the corpus, kept in memory.
        config: settings of the tokenizer and of BM25.

    Raises:
        UserError: if there are no passages.
    """

    name = "rank_bm25"

    def __init__(self, passages: Iterable[Passage], config: BM25Config | None = None):
        self.config = config or BM25Config()
        self.passages = list(passages)
        if not self.passages:
            raise UserError("rank_bm25: no passages to index; give a corpus with at least one")
        tokenize = tokenizer(self.config)
        documents = [tokenize(indexed_text(passage)) for passage in self.passages]
        self._bm25 = _LuceneBM25(documents, k1=self.config.k1, b=self.config.b)

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
        known = [token for token in tokens if token in self._bm25.idf]
        scores = self._bm25.get_scores(known)
        return [self.passages[i].model_copy(update={"score": float(scores[i])}) for i in top_k(scores, k)]
