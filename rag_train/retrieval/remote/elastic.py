"""Search with Lucene's query syntax on Elasticsearch or OpenSearch, for corpora too large for one machine.

It takes the same queries as `LuceneIndex`. It is tested with a fake server that implements the REST API
(`tests/rag_train/retrieval/remote/test_elastic.py`); it has not been run on a real cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import httpx
from pydantic import ValidationError

from rag_train.errors import masked
from rag_train.retrieval.base import check_number
from rag_train.retrieval.corpus import encodable
from rag_train.retrieval.index.lucene_query import parse, render
from rag_train.retrieval.kinds import http_address, place, refused
from rag_train.retrieval.remote.service import ServiceClient
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


class ElasticRetriever(ServiceClient):
    """An index of a cluster.

    Args:
        url: address of the cluster, such as ``http://127.0.0.1:9200``.
        index: name of the index.
        headers: headers of every request, such as ``{"Authorization": "ApiKey ..."}``.
        timeout: time limit of an attempt in seconds.
        retries: number of further attempts if the cluster is busy or cannot be reached.
    """

    name = "elastic"

    def __init__(
        self, url: str, index: str, headers: dict[str, str] | None = None, timeout: float = 60.0, retries: int = 3
    ):
        url, remedy = url.rstrip("/"), "check the address, the index and the cluster"
        super().__init__(f"elastic {url}/{index}", url, remedy, timeout, retries, headers)
        self.index = index
        self.identity = {"elastic": masked(url), "index": index}

    def index_passages(self, passages: Iterable[Passage], progress: Callable[[int], None] = lambda _: None) -> int:
        """Add passages to the index, which is created if necessary, and return their number.

        A passage replaces an indexed passage with the same id, so an interrupted call can be repeated.

        Args:
            progress: called with the number of passages added so far.

        Raises:
            ServiceError: if the cluster cannot be reached or rejects a passage.
        """
        created = self.send("PUT", f"/{self.index}", json=_INDEX, allowed=(200, 201, 400))
        if created.status_code == 400 and "resource_already_exists" not in created.text:
            raise self.error(created.text[:300])
        total, stream = 0, iter(passages)
        while block := list(islice(stream, _BULK)):
            lines = (
                line
                for p in block
                for line in ({"index": {"_id": p.id}}, {"title": encodable(p.title), "text": encodable(p.text)})
            )
            answer = _json(self.send("POST", f"/{self.index}/_bulk", content=_ndjson(lines), headers=_NDJSON))
            if answer.get("errors"):
                refused = next(i["index"] for i in answer["items"] if "error" in i["index"])
                raise self.error(f"passage {refused['_id']!r} was rejected ({refused['error'].get('reason')})")
            total += len(block)
            progress(total)
        self.send("POST", f"/{self.index}/_refresh")
        return total

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return for each query at most ``k`` passages that match it, like `LuceneIndex.search`.

        Scores and the order of equal scores are determined by the cluster.
        """
        check_number(k)
        rendered = [_lucene_query(query) for query in queries]
        searchable = [i for i, query in enumerate(rendered) if query]
        found: list[list[Passage]] = [[] for _ in queries]
        for start in range(0, len(searchable), _MSEARCH):
            part = searchable[start : start + _MSEARCH]
            for i, passages in zip(part, self._msearch([rendered[i] for i in part], k), strict=True):
                found[i] = passages
        return found

    def _msearch(self, queries: Sequence[str], k: int) -> Iterator[list[Passage]]:
        lines = []
        for query in queries:
            condition = {"query_string": {"query": query, "default_field": _EVERYWHERE}}
            lines += [{}, {"query": condition, "size": k, "_source": ["title", "text"]}]
        answer = _json(self.send("POST", f"/{self.index}/_msearch", content=_ndjson(lines), headers=_NDJSON))
        responses = answer.get("responses")
        if not isinstance(responses, list) or len(responses) != len(queries):
            raise self.error("the response is not that of Elasticsearch")
        try:
            for response in responses:
                if "error" in response:
                    raise self.error(str(response["error"].get("reason"))[:300])
                yield [_passage(hit) for hit in response["hits"]["hits"]]
        except (KeyError, TypeError, AttributeError, ValidationError) as error:
            raise self.error("the response is not that of Elasticsearch") from error


@place(
    "elastic://HOST:PORT/INDEX",
    "Elasticsearch or OpenSearch; elastic+https:// with TLS; an API key is read from ELASTIC_API_KEY",
    r"elastic(\+\w*)?:.*",
)
def _open(text: str) -> ElasticRetriever:
    url, _, index = http_address(text).rpartition("/")
    if not index or url.endswith(("/", ":")):
        raise refused(text, "no index name", "write elastic://HOST:PORT/INDEX")
    key = os.environ.get("ELASTIC_API_KEY", "").strip()
    return ElasticRetriever(url, index, {"Authorization": f"ApiKey {key}"} if key else None)


def _passage(hit: dict[str, Any]) -> Passage:
    source = hit["_source"]
    return Passage(id=hit["_id"], title=source["title"], text=source["text"], score=hit["_score"])


def _lucene_query(query: str) -> str:
    """Return the query for the cluster, or "" for exclusions only, which would match all other passages there."""
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
