"""Opening a retriever by its specification, and indexing a corpus into any place.

Packages of optional extras are imported by the functions that need them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rag_train.errors import UserError
from rag_train.retrieval.base import Retriever
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.specification import WEB_SEARCHES, Combination, Place, Specification, parse

if TYPE_CHECKING:
    from rag_train.retrieval.index.encoder import Encoder
    from rag_train.retrieval.remote.elastic import ElasticRetriever
    from rag_train.retrieval.remote.milvus import MilvusRetriever
    from rag_train.retrieval.rerank import Reranker

_BLOCK = 10_000
"""Passages encoded and sent to Milvus at a time."""


def open_retriever(specification: str) -> Retriever:
    """Open the retriever of a specification; see `rag_train.retrieval.specification` for the grammar.

    Raises:
        UserError: if the specification is malformed, or if a part of it cannot be opened.
    """
    return _open(parse(specification))


def open_reranker(place: str, model: str = "") -> Reranker:
    """Open the cross-encoder in a directory, on the hub, or on a vLLM server.

    Args:
        place: directory, hub name, or address of the server.
        model: name of the model on the server, if the server has several.

    Raises:
        UserError: if the cross-encoder cannot be loaded.
    """
    from rag_train.retrieval.rerank import CrossEncoderReranker, VLLMScoreReranker

    if place.startswith(("http://", "https://")):
        return VLLMScoreReranker(place, model)
    return CrossEncoderReranker(place)


def index_corpus(kind: str, corpus: Path, output: str, progress: Callable[[int], None], **options: Any) -> int:
    """Index a corpus file into a directory, an Elasticsearch index or a Milvus collection.

    Args:
        kind: kind of an index directory; see `rag_train.retrieval.index.open.build_index`.
        output: a directory, or a specification that begins with ``elastic`` or ``milvus``.
        progress: called with the number of passages indexed so far.
        options: settings of an index directory; see `build_index`.

    Returns:
        The number of passages.

    Raises:
        UserError: if the corpus cannot be read, an option does not apply, or the index cannot be written.
    """
    scheme, _, rest = output.partition(":")
    kind_of_place = scheme.partition("+")[0] if rest else ""
    if kind_of_place not in ("elastic", "milvus"):
        from rag_train.retrieval.index.open import build_index

        return build_index(kind, corpus, Path(output), progress, **options)
    if kind != "bm25" or any(value not in (None, False, "", "Flat", "english") for value in options.values()):
        raise UserError(f"index {output}: --kind and the options of dense are for directories; leave them out")
    if kind_of_place == "elastic":
        return _open_elastic(output).index_passages(read_corpus(corpus), progress)
    retriever, encoder = _open_milvus(output)
    passages, total = read_corpus(corpus), 0
    while block := list(islice(passages, _BLOCK)):
        retriever.index_vectors(block, encoder.encode_passages(block))
        progress(total := total + len(block))
    return total


def _open(specification: Specification) -> Retriever:
    match specification:
        case Place(text):
            return _open_place(text)
        case Combination("rerank", (inner, Place(place), *names)):
            from rag_train.retrieval.rerank import RerankedRetriever

            return RerankedRetriever(_open(inner), open_reranker(place, *map(_text, names)))
        case Combination("cache", (inner, Place(file))):
            from rag_train.retrieval.cache import CachedRetriever

            return CachedRetriever(_open(inner), file)
        case Combination(method, arguments, weights):
            from rag_train.retrieval.fusion import FusedRetriever, Method

            retrievers = [_open(argument) for argument in arguments]
            try:
                return FusedRetriever(retrievers, cast(Method, method), weights)
            except UserError as error:
                raise UserError(f"retriever {str(specification)!r}: {error}") from error


def _open_place(text: str) -> Retriever:
    scheme, separator, rest = text.partition("://")
    kind, _, transport = scheme.partition("+")
    if separator and scheme in ("http", "https"):
        from rag_train.retrieval.remote.client import RetrievalClient

        return RetrievalClient(text)
    if text in WEB_SEARCHES or (separator and kind in WEB_SEARCHES and transport in ("http", "https")):
        from rag_train.retrieval.remote.web import WebRetriever

        return WebRetriever(kind, f"{transport}://{rest}" if separator else None)
    if separator and kind == "elastic":
        return _open_elastic(text)
    if text.startswith("milvus:") or (separator and kind == "milvus"):
        return _open_milvus(text)[0]
    if separator:
        raise _error(text, "unknown kind of address", "write http://, elastic://, milvus:// or searxng+http://")
    if not Path(text).exists():
        remedy = f"give an index directory, an address or a web search ({', '.join(WEB_SEARCHES)})"
        raise _error(text, "no such directory", remedy)
    from rag_train.retrieval.index.open import load_index

    return load_index(text)


def _open_elastic(text: str) -> ElasticRetriever:
    from rag_train.retrieval.remote.elastic import ElasticRetriever

    url, _, index = _http_address(text).rpartition("/")
    if not index or url.endswith(("/", ":")):
        raise _error(text, "no index name", "write elastic://HOST:PORT/INDEX")
    key = os.environ.get("ELASTIC_API_KEY", "").strip()
    return ElasticRetriever(url, index, {"Authorization": f"ApiKey {key}"} if key else None)


def _open_milvus(text: str) -> tuple[MilvusRetriever, Encoder]:
    from rag_train.retrieval.index.encoder import Encoder, EncoderConfig, family
    from rag_train.retrieval.remote.milvus import MilvusRetriever

    address, _, query = text.partition("?")
    options = {name: value for name, _, value in (pair.partition("=") for pair in query.split("&") if pair)}
    if unknown := options.keys() - {"encoder", "metric"}:
        raise _error(text, f"unknown option {min(unknown)!r}", "the options are encoder and metric")
    local = "://" not in address
    uri, _, collection = (address.removeprefix("milvus:") if local else _http_address(address)).rpartition("/")
    if not collection or not uri or uri.endswith("/"):
        raise _error(text, "no collection", "write milvus://HOST:PORT/COLLECTION or milvus:FILE.db/COLLECTION")
    encoder = Encoder(family(options["encoder"]) if options.get("encoder") else EncoderConfig())
    metric: Any = options.get("metric", "ip")
    return MilvusRetriever(uri, collection, encoder.encode_queries, metric, encoder.identity), encoder


def _http_address(text: str) -> str:
    """Return the HTTP address of ``KIND://...`` or ``KIND+https://...``."""
    scheme, _, rest = text.partition("://")
    transport = scheme.partition("+")[2] or "http"
    if transport not in ("http", "https"):
        raise _error(text, f"unknown transport {transport!r}", "write +http or +https")
    return f"{transport}://{rest}"


def _text(argument: Specification) -> str:
    assert isinstance(argument, Place), "the parser accepts only places here"
    return argument.text


def _error(text: str, problem: str, remedy: str) -> UserError:
    return UserError(f"retriever {text!r}: {problem}; {remedy}")
