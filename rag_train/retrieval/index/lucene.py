"""Embedded search with Lucene's query syntax, on the library tantivy: the sparse searcher of LevelRAG.

Queries have the syntax of `lucene_query`, in which any string is valid. `ElasticRetriever` sends the same queries
to a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from rag_train.errors import UserError, not_installed
from rag_train.retrieval.base import check_number
from rag_train.retrieval.corpus import PassageStore, encodable
from rag_train.retrieval.index.directory import (
    MANIFEST,
    StoredIndex,
    another_corpus,
    changed,
    inconsistent,
    open_passages,
    publish,
    read_manifest,
    shards,
    working_directory,
    write_manifest,
)
from rag_train.retrieval.index.lucene_query import Clause, parse
from rag_train.retrieval.index.words import LANGUAGES, LONGEST_QUERY, Words, telling_scripts
from rag_train.retrieval.kinds import index_kind
from rag_train.schema import Passage

FORMAT = "rag-train-lucene"
VERSION = 2

SHARD = 50_000
"""Passages between commits; a killed build loses at most this many."""

_ENGINE = "tantivy"
_ANALYZER = "rag_train_words"
_EVERYWHERE = "all"
_GAP = "\ue000"
"""Stands for a stop word in a text, so that the positions of the other words stay; tantivy does not index it."""
_SPARE = 16
"""Passages found beyond those asked for: tantivy keeps any of the passages that share the last place."""


def build_lucene(
    passages: Iterable[Passage],
    directory: str | Path,
    language: str = "english",
    progress: Callable[[int], None] | None = None,
    shard: int = SHARD,
) -> int:
    """Index passages, which may be a stream, into ``directory`` and return their number.

    After a kill, the same call continues after the last commit, once it has checked that the corpus still begins
    with the same passages. An existing index in the directory is replaced at the end.

    Args:
        language: one of `rag_train.retrieval.index.words.LANGUAGES`.
        progress: called with the number of passages indexed so far.

    Raises:
        UserError: if the language is unknown, if there are no passages, if an unfinished build used another corpus,
            or if the directory contains anything except an index or cannot be written.
    """
    directory = Path(directory).resolve()
    words, total = Words(language), 0
    with working_directory(directory) as work:
        (work / _ENGINE).mkdir(exist_ok=True)
        engine = _tantivy().Index(_schema(), path=str(work / _ENGINE), reuse=True)
        engine.register_tokenizer(_ANALYZER, _analyzer())
        engine.reload()
        done = engine.searcher().num_docs
        # With several threads, the order of equal scores would depend on timing.
        writer = engine.writer(heap_size=256_000_000, num_threads=1)
        for block, mark in shards(passages, work, [FORMAT, VERSION, language], shard, progress):
            total += len(block)
            if total > done:
                for position, passage in enumerate(block, total - len(block)):
                    writer.add_document(_document(passage, position, words))
                mark.touch()
                writer.commit()
            elif not mark.exists():
                raise another_corpus(work)
        if total < done:
            raise another_corpus(work)
        writer.wait_merging_threads()
        for lock in (work / _ENGINE).glob(".*.lock"):
            lock.unlink()
        (work / _ENGINE).rename(work / "index" / _ENGINE)
        write_manifest(work / "index", FORMAT, VERSION, {"language": language}, total)
        publish(work, directory)
    return total


def _schema() -> Any:
    builder = _tantivy().SchemaBuilder()
    for field in ("title", "text", _EVERYWHERE):
        builder.add_text_field(field, stored=False, tokenizer_name=_ANALYZER, index_option="position")
    return builder.add_unsigned_field("position", fast=True).build()


def _document(passage: Passage, position: int, words: Words) -> Any:
    title, text = (_spaced(words.with_gaps(encodable(part))) for part in (passage.title, passage.text))
    document = _tantivy().Document(title=title, text=text, **{_EVERYWHERE: f"{title} {text}"})
    document.add_unsigned("position", position)
    return document


def _spaced(words: Sequence[str]) -> str:
    return " ".join(word or _GAP for word in words)


def _analyzer() -> Any:
    tantivy = _tantivy()
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).filter(tantivy.Filter.remove_long(255))
    return builder.filter(tantivy.Filter.custom_stopword([_GAP])).build()


def _tantivy() -> Any:
    try:
        import tantivy
    except ImportError as error:
        raise not_installed(error) from error
    return tantivy


@contextmanager
def _refusing(directory: Path) -> Iterator[None]:
    """Raise UserError for any failure of tantivy, which reads a stranger's files lazily."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        raise inconsistent(directory, _ENGINE) from error


class LuceneIndex(StoredIndex):
    """A tantivy index with its passages, created by `build` or `load`.

    Scores are BM25 scores with Lucene's k1 = 1.2 and b = 0.75, over title and text together; ``title:`` and
    ``text:`` search a single field.

    Attributes:
        directory: where the index lies.
    """

    name, format, version, write = "lucene", FORMAT, VERSION, staticmethod(build_lucene)

    def __init__(self, passages: PassageStore, corpus_sha256: str, engine: Any, directory: Path, language: str):
        super().__init__(passages, corpus_sha256, language=language)
        self.directory = directory
        self._schema = engine.schema
        self._searcher = engine.searcher()
        self._words = Words(language)

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Open a saved index, which stays on disk, after checking the size and SHA-256 of every file.

        Raises:
            UserError: if `read_manifest` rejects the directory.
        """
        directory = Path(directory)
        manifest = read_manifest(directory, FORMAT, VERSION)
        language = manifest.config.get("language")
        if not isinstance(language, str) or language not in LANGUAGES:
            raise changed(directory, MANIFEST)
        with _refusing(directory):
            engine = _tantivy().Index.open(str(directory / _ENGINE))
            engine.register_tokenizer(_ANALYZER, _analyzer())
            passages = open_passages(directory, manifest.passages)
            return cls(passages, manifest.corpus_sha256, engine, directory, language)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return for each query at most ``k`` passages that match it, best first, with scores.

        Equal scores are in corpus order. A query with exclusions only, or with stop words only, gets an empty list.
        Only the first `LONGEST_QUERY` characters of a query count.
        """
        check_number(k)
        with _refusing(self.directory):
            return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> list[Passage]:
        compiled = self._compiled(parse(query[:LONGEST_QUERY]))
        if compiled is None:
            return []
        deep = k + _SPARE
        while True:
            hits = self._searcher.search(compiled, limit=min(deep, len(self)), count=False).hits
            if len(hits) < deep or hits[-1][0] < hits[k - 1][0]:
                break
            deep *= 8  # others may share the last place
        positions = self._searcher.fast_field_values("position", [address for _, address in hits])
        ranked = sorted(zip((-score for score, _ in hits), positions, strict=True))[:k]
        return self.passages.found([position for _, position in ranked], [-score for score, _ in ranked])

    def _compiled(self, clauses: Sequence[Clause]) -> Any | None:
        """Return tantivy's query for the clauses, or None if they cannot match any passage."""
        tantivy = _tantivy()
        occurs = {"should": tantivy.Occur.Should, "must": tantivy.Occur.Must, "must_not": tantivy.Occur.MustNot}
        parts = []
        matching = False
        for clause in clauses:
            words = self._words.with_gaps(" ".join(clause.words))
            tokens = [(position, word) for position, word in enumerate(words) if word]
            # A word in a script without spaces may be a whole sentence: its parts are separate terms.
            plain = clause.occur == "should" and len(clause.words) == 1
            for phrase in [[token] for token in tokens] if plain else [tokens] if tokens else []:
                field = clause.field or _EVERYWHERE
                if len(phrase) == 1:
                    part = tantivy.Query.term_query(self._schema, field, phrase[0][1], index_option="freq")
                else:  # positions keep the gaps that stop words leave
                    part = tantivy.Query.phrase_query(self._schema, field, phrase)
                if clause.boost != 1:
                    part = tantivy.Query.boost_query(part, clause.boost)
                parts.append((occurs[clause.occur], part))
                matching |= clause.occur != "must_not"
        return tantivy.Query.boolean_query(parts) if matching else None


@index_kind("lucene", 'Lucene syntax: "phrase", -term, term^2, title:term', FORMAT, LuceneIndex.load)
def _build(
    passages: Iterable[Passage], directory: Path, progress: Callable[[int], None], *, language: str = "english"
) -> int:
    return build_lucene(telling_scripts(passages, language), directory, language, progress)
