"""Exact search for the largest inner products: BLAS makes the products, a compiled loop keeps the best of them.

On CPUs this takes about the time of the products; FAISS's IndexFlatIP takes several times as long
(`python -m eval.bench_retrieval`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock

import numpy as np

_QUERIES, _VECTORS = 256, 65_536
"""Products made at a time: 64 MiB."""
_ONE_AT_A_TIME = Lock()
"""numba ends the process when two threads start its own threads at once (its workqueue layer)."""


def largest_products(queries: np.ndarray, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The ``k`` largest inner products of each query (n, d) with vectors (m, d), float32, and their positions.

    Returns:
        Products and positions (n, k), largest first, equal ones in order of position; where m < k, minus infinity
        and -1.
    """
    best = np.full((len(queries), k), -np.inf, dtype=np.float32)
    positions = np.full((len(queries), k), -1, dtype=np.int64)
    for start in range(0, len(queries), _QUERIES):
        rows = slice(start, start + _QUERIES)
        for first in range(0, len(vectors), _VECTORS):
            products = np.dot(queries[rows], vectors[first : first + _VECTORS].T)
            with _ONE_AT_A_TIME:
                _keeper()(products, first, best[rows], positions[rows])
    return best, positions


@cache
def _keeper() -> Callable[..., None]:
    import numba  # when first used: see rag_train.retrieval.bm25

    @numba.njit(parallel=True, nogil=True)
    def keep_best(products: np.ndarray, first: int, best: np.ndarray, positions: np.ndarray) -> None:
        """Put each row's products into its ``best``, sorted; ``first`` is the position of the first column."""
        last = best.shape[1] - 1
        for row in numba.prange(products.shape[0]):
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
