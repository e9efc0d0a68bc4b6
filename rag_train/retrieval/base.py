"""The protocol of retrievers: a batch of queries in, ranked passages out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rag_train.schema import Passage


class Retriever(Protocol):
    @property
    def name(self) -> str: ...

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The ``k`` best passages for each query, best first, with scores; fewer if the corpus is smaller."""
        ...
