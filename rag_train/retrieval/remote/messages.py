"""The requests and the responses of the retrieval service."""

from __future__ import annotations

import math
import sys
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from rag_train.schema import Passage, Record


class SearchRequest(Record):
    """The body of ``POST /search``."""

    queries: list[StrictStr]
    k: Annotated[StrictInt, Field(ge=1)] = 5


class SearchResponse(Record):
    """The body of the response: for each query the passages, best first."""

    passages: list[list[Passage]]


class FoundPassage(BaseModel):
    """A passage as other makers' services send it: with ids as numbers, or with fields of their own."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str
    title: str | None = None
    text: str
    score: float | None = None

    def passage(self) -> Passage:
        """Return the passage; a score that is not a finite number is left out."""
        score = self.score if self.score is not None and math.isfinite(self.score) else None
        return Passage(id=self.id, title=self.title or "", text=self.text, score=score)


class FoundResponse(BaseModel):
    """A `SearchResponse` as other makers' services send it."""

    passages: list[list[FoundPassage]]


class HealthResponse(BaseModel):
    """The fields of the response to ``GET /health`` that a client needs."""

    retriever: str
    identity: str = ""
    """Hash of the served retriever's identity: after indexing again, it is another retriever."""
    corpus_sha256: str = ""
    max_queries: Annotated[StrictInt, Field(ge=1)]
    max_passages: Annotated[StrictInt, Field(ge=1)] = sys.maxsize
