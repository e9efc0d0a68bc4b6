"""Exact search for the largest inner products: BLAS computes the products, a compiled loop selects the largest.

On CPUs this takes about as long as the products alone; FAISS's IndexFlatIP takes several times as long
(`python -m rag_train.eval.benchmarks.retrieval`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import repeat

import numpy as np

_QUERIES, _VECTORS = 256, 65_536
"""Size of a block of products: 64 MiB."""
_THREADS = os.cpu_count() or 1
_POOL = ThreadPoolExecutor(_THREADS)
"""Python threads instead of numba's, whose waiting makes PyTorch's threads twenty times slower."""


def largest_products(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ``k`` largest inner products of each query with all vectors, and their positions.

    Args:
        queries: float32, of shape (n, d).
        vectors: float32, of shape (m, d).

    Returns:
        Products and positions, each of shape (n, k), largest first, ties in order of position. If m < k, the
        rest is filled with minus infinity and -1.
    """
    best = np.full((len(queries), k), -np.inf, dtype=np.float32)
    positions = np.full((len(queries), k), -1, dtype=np.int64)
    for start in range(0, len(queries), _QUERIES):
        rows = slice(start, start + _QUERIES)
        for first in range(0, len(vectors), _VECTORS):
            products = np.dot(queries[rows], vectors[first : first + _VECTORS].T)
            parts = [slice(i, None, _THREADS) for i in range(_THREADS)]
            shares = ([whole[part] for part in parts] for whole in (products, best[rows], positions[rows]))
            list(_POOL.map(_keeper(), *shares, repeat(first)))
    return best, positions


@cache
def _keeper() -> Callable[..., None]:
    import numba  # on first use: see rag_train.retrieval.index.bm25

    @numba.njit(nogil=True)
    def keep_best(products: np.ndarray, best: np.ndarray, positions: np.ndarray, first: int) -> None:
        """Insert each row's products into its sorted ``best``; ``first`` is the position of the first column."""
        last = best.shape[1] - 1
        for row in range(products.shape[0]):
            for column in range(products.shape[1]):
                product = products[row, column]
                if product > best[row, last]:
                    at = last
                    while at > 0 and best[row, at - 1] < product:
                        best[row, at] = best[row, at - 1]
                        positions[row, at] = positions[row, at - 1]
                        at -= 1
                    best[row, at] = product
                    positions[row, at] = first + column

    return keep_best
