"""What the retrieval service and its client send each other."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictInt, StrictStr

from rag_train.schema import Passage, Record


class SearchRequest(Record):
    """The body of ``POST /search``."""

    queries: list[StrictStr]
    k: Annotated[StrictInt, Field(ge=1)] = 5


class SearchResponse(Record):
    """Its answer: for each query the passages, best first."""

    passages: list[list[Passage]]
