"""The Elasticsearch client with a fake cluster."""

from collections.abc import Iterator

import pytest
from support.servers import Cluster, elastic_cluster

from rag_train.errors import UserError
from rag_train.retrieval.index.lucene import LuceneIndex
from rag_train.retrieval.remote.elastic import ElasticRetriever
from rag_train.schema import Passage

PASSAGES = [
    Passage(id="1", title="Paris", text="Paris is the capital of France."),
    Passage(id="2", title="London", text="London is the capital of England, and has a film's length of history."),
    Passage(id="3", title="Film", text="The capital of the film France"),
    Passage(id="4", title="दिल्ली", text="दिल्ली भारत की राजधानी है"),
]


@pytest.fixture
def cluster() -> Iterator[str]:
    with elastic_cluster() as url:
        yield url


def test_returns_the_results_of_the_embedded_index(cluster: str):
    index = LuceneIndex.build(PASSAGES)
    elastic = ElasticRetriever(cluster, "wiki")
    assert elastic.index_passages(PASSAGES) == elastic.index_passages(iter(PASSAGES)) == 4
    queries = ["capital -france", "-france", '"capital of', "title:film^2 \ud800", ""]
    assert elastic.search(queries, 2) == index.search(queries, 2)
    assert Cluster.asked == ["capital -france", "capital of", "title:film^2"]
    assert elastic.search([], 2) == []


def test_reports_errors_of_the_cluster(cluster: str):
    with pytest.raises(UserError, match=r"passage '7' was rejected \(no text\)"):
        ElasticRetriever(cluster, "wiki").index_passages([Passage(id="7", title="x", text="")])
    with pytest.raises(UserError, match="status 404"):
        ElasticRetriever(cluster, "gone").search(["x"], 1)
    with pytest.raises(UserError, match="check the address"):
        ElasticRetriever("http://127.0.0.1:1", "wiki", retries=0).search(["x"], 1)
