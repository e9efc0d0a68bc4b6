"""The protocol of inference strategies."""

from __future__ import annotations

from typing import Protocol

from rag_train.schema import Question, Trajectory


class Strategy(Protocol):
    """Answers one question at a time; run many at once, the engine and the retriever batch them."""

    @property
    def name(self) -> str: ...

    async def answer(self, question: Question) -> Trajectory: ...
