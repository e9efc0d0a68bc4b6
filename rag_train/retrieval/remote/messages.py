"""The requests and the responses of the retrieval service."""

from __future__ import annotations

import sys
from typing import Annotated

from pydantic import BaseModel, Field, StrictInt, StrictStr

from rag_train.schema import Passage, Record


class SearchRequest(Record):
    """The body of ``POST /search``."""

    queries: list[StrictStr]
    k: Annotated[StrictInt, Field(ge=1)] = 5


class SearchResponse(Record):
    """The body of the response: for each query the passages, best first."""

    passages: list[list[Passage]]


class HealthResponse(BaseModel):
    """The fields of the response to ``GET /health`` that a client needs."""

    retriever: str
    max_queries: Annotated[StrictInt, Field(ge=1)]
    max_passages: Annotated[StrictInt, Field(ge=1)] = sys.maxsize
