"""Lucene-syntax search on Elasticsearch or OpenSearch, over their REST API: for what outgrows one machine.

The same query strings as `LuceneIndex` takes, unchanged. Tried on a server of ours that speaks the API's shapes
(`tests/test_lucene.py`); it has not been run on a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from rag_train.errors import UserError
from rag_train.http import httpx, send
from rag_train.retrieval.corpus import encodable
from rag_train.retrieval.lucene_query import parse, render
from rag_train.schema import Passage

_NDJSON = {"Content-Type": "application/x-ndjson"}
_BULK = 1000
_MSEARCH = 256
_EVERYWHERE = "all"

_INDEX = {
    "mappings": {
        "properties": {
            "title": {"type": "text", "analyzer": "english", "copy_to": _EVERYWHERE},
            "text": {"type": "text", "analyzer": "english", "copy_to": _EVERYWHERE},
            _EVERYWHERE: {"type": "text", "analyzer": "english"},
        }
    }
}


class ElasticRetriever:
    """An index of a cluster as a retriever. May be shared by threads.

    Args:
        url: of the cluster, such as ``http://127.0.0.1:9200``.
        index: its name there.
        headers: sent with every request, such as ``{"Authorization": "ApiKey …"}``.
        timeout: seconds to wait for a connection, and for each part of an answer.
        retries: attempts after the first, where the cluster is busy or cannot be reached.
    """

    name = "elastic"

    def __init__(
        self, url: str, index: str, headers: dict[str, str] | None = None, timeout: float = 60.0, retries: int = 3
    ):
        self.url = url.rstrip("/")
        self.index = index
        self.retries = retries
        self._client = httpx.Client(timeout=timeout, headers=headers)

    def index_passages(self, passages: Iterable[Passage]) -> int:
        """Put passages into the index, which is made if it is not there; returns how many.

        A passage replaces the one of its id, so that a load that was broken off can be repeated.

        Raises:
            UserError: if the cluster cannot be reached or refuses a passage.
        """
        made = self._ask("PUT", f"/{self.index}", json=_INDEX, allowed=(400,))
        if made.status_code == 400 and "resource_already_exists" not in made.text:
            raise self._error(made.text[:300])
        total, stream = 0, iter(passages)
        while block := list(islice(stream, _BULK)):
            lines = (
                line
                for p in block
                for line in ({"index": {"_id": p.id}}, {"title": encodable(p.title), "text": encodable(p.text)})
            )
            answer = _json(self._ask("POST", f"/{self.index}/_bulk", content=_ndjson(lines), headers=_NDJSON))
            if answer.get("errors"):
                refused = next(i["index"] for i in answer["items"] if "error" in i["index"])
                raise self._error(f"passage {refused['_id']!r} was refused ({refused['error'].get('reason')})")
            total += len(block)
        self._ask("POST", f"/{self.index}/_refresh")
        return total

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """As `LuceneIndex.search`; scores and the order of equal ones are the cluster's.

        Raises:
            ValueError: if ``k`` is less than 1.
            UserError: if the cluster cannot be reached, has no such index, or does not answer as it should.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one passage")
        rendered = [_matching(query) for query in queries]
        asked = [i for i, query in enumerate(rendered) if query]
        found: list[list[Passage]] = [[] for _ in queries]
        for start in range(0, len(asked), _MSEARCH):
            part = asked[start : start + _MSEARCH]
            for i, passages in zip(part, self._msearch([rendered[i] for i in part], k), strict=True):
                found[i] = passages
        return found

    def _msearch(self, queries: Sequence[str], k: int) -> Iterator[list[Passage]]:
        lines = []
        for query in queries:
            condition = {"query_string": {"query": query, "default_field": _EVERYWHERE}}
            lines += [{}, {"query": condition, "size": k, "_source": ["title", "text"]}]
        answer = _json(self._ask("POST", f"/{self.index}/_msearch", content=_ndjson(lines), headers=_NDJSON))
        responses = answer.get("responses")
        if not isinstance(responses, list) or len(responses) != len(queries):
            raise self._error("the answer is not one of Elasticsearch")
        for response in responses:
            if "error" in response:
                raise self._error(str(response["error"].get("reason"))[:300])
            yield [
                Passage(
                    id=hit["_id"], title=hit["_source"]["title"], text=hit["_source"]["text"], score=hit["_score"]
                )
                for hit in response["hits"]["hits"]
            ]

    def _ask(self, method: str, path: str, allowed: Sequence[int] = (), **content: Any) -> httpx.Response:
        try:
            response = send(self._client, method, self.url + path, self.retries, **content)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self._error(str(error) or type(error).__name__) from error
        if response.status_code not in (200, 201, *allowed):
            raise self._error(f"status {response.status_code}, {' '.join(response.text[:300].split())}")
        return response

    def _error(self, problem: str) -> UserError:
        return UserError(f"elastic {self.url}/{self.index}: {problem}; mend the address, the index or the cluster")


def _matching(query: str) -> str:
    """The query for the cluster; empty if it excludes only, which there would match everything else."""
    clauses = parse(query)
    return render(clauses) if any(clause.occur != "must_not" for clause in clauses) else ""


def _ndjson(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        value = response.json()
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}
