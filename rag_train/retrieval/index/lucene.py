"""Embedded search with Lucene's query syntax, on the library tantivy: the sparse searcher of LevelRAG.

Queries have the syntax of `lucene_query`, in which any string is valid. `ElasticRetriever` sends the same queries
to a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rag_train.errors import UserError, not_installed
from rag_train.retrieval.corpus import PassageStore, encodable, encode
from rag_train.retrieval.index.directory import (
    OFFSETS,
    PASSAGES,
    another_corpus,
    clear,
    inconsistent,
    open_passages,
    publish,
    read_manifest,
    working_directory,
    write_manifest,
)
from rag_train.retrieval.index.lucene_query import Clause, parse
from rag_train.retrieval.index.text import LONGEST_QUERY
from rag_train.schema import Passage

FORMAT = "rag-train-lucene"
VERSION = 1

SHARD = 50_000
"""Passages between commits; a killed build loses at most this many."""

_ENGINE = "tantivy"
_ANALYZER = "rag_train_english"
_EVERYWHERE = "all"


class LuceneIndex:
    """A tantivy index with its passages, created by `build` or `load`.

    Scores are BM25 scores with Lucene's k1 = 1.2 and b = 0.75, over title and text together; ``title:`` and
    ``text:`` search a single field. Words are lower-cased, filtered by English stop words and stemmed.

    Attributes:
        passages: the passages in corpus order.
        corpus_sha256: SHA-256 of the passages as JSON Lines; identifies the corpus in records made with this index.
        directory: where the index lies.
    """

    name = "lucene"

    def __init__(self, engine: Any, passages: PassageStore, corpus_sha256: str, directory: Path):
        self.passages = passages
        self.directory = directory
        self.corpus_sha256 = corpus_sha256
        self._schema = engine.schema
        self._searcher = engine.searcher()
        self._analyzer = _analyzer()

    def __len__(self) -> int:
        return len(self.passages)

    @property
    def identity(self) -> Any:
        return {"index": FORMAT, "version": VERSION, "corpus_sha256": self.corpus_sha256}

    @classmethod
    def build(cls, passages: Iterable[Passage]) -> LuceneIndex:
        """Index passages that fit in memory. To index a corpus of any size into a directory, use `build_lucene`.

        Raises:
            UserError: if there are no passages.
        """
        with TemporaryDirectory() as directory:
            build_lucene(passages, Path(directory, "index"))
            return cls.load(Path(directory, "index"))

    @classmethod
    def load(cls, directory: str | Path) -> LuceneIndex:
        """Open a saved index, which stays on disk, after checking the size and SHA-256 of every file.

        Raises:
            UserError: if `read_manifest` rejects the directory.
        """
        directory = Path(directory)
        manifest = read_manifest(directory, FORMAT, VERSION)
        with _refusing(directory):
            engine = _tantivy().Index.open(str(directory / _ENGINE))
            engine.register_tokenizer(_ANALYZER, _analyzer())
            passages = open_passages(directory, manifest.passages)
            return cls(engine, passages, manifest.corpus_sha256, directory)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return for each query at most ``k`` passages that match it, best first, with scores.

        Equal scores are in corpus order. A query with exclusions only, or with stop words only, gets an empty list.
        Only the first `LONGEST_QUERY` characters of a query count.

        Raises:
            ValueError: if ``k`` is less than 1.
            UserError: if a file of the index cannot be read or is not what it should be.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one passage")
        with _refusing(self.directory):
            return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> list[Passage]:
        compiled = self._compiled(parse(query[:LONGEST_QUERY]))
        if compiled is None:
            return []
        hits = self._searcher.search(compiled, limit=min(k, len(self)), count=False).hits
        positions = self._searcher.fast_field_values("position", [address for _, address in hits])
        ranked = sorted(zip((-score for score, _ in hits), positions, strict=True))
        return [self.passages[position].model_copy(update={"score": -score}) for score, position in ranked]

    def _compiled(self, clauses: Sequence[Clause]) -> Any | None:
        """Return tantivy's query for the clauses, or None if they cannot match any passage."""
        tantivy = _tantivy()
        occurs = {"should": tantivy.Occur.Should, "must": tantivy.Occur.Must, "must_not": tantivy.Occur.MustNot}
        parts = []
        matching = False
        for clause in clauses:
            tokens = self._analyzer.pre_tokenize(" ".join(clause.words)).tokens
            if not tokens:
                continue
            field = clause.field or _EVERYWHERE
            if len(tokens) == 1:
                part = tantivy.Query.term_query(self._schema, field, tokens[0].text, index_option="freq")
            else:  # positions keep the gaps that stop words leave
                words = [(token.position, token.text) for token in tokens]
                part = tantivy.Query.phrase_query(self._schema, field, words)
            if clause.boost != 1:
                part = tantivy.Query.boost_query(part, clause.boost)
            parts.append((occurs[clause.occur], part))
            matching |= clause.occur != "must_not"
        return tantivy.Query.boolean_query(parts) if matching else None


@contextmanager
def _refusing(directory: Path) -> Iterator[None]:
    """Raise UserError for any failure of tantivy, which reads a stranger's files lazily."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        raise inconsistent(directory, _ENGINE) from error


def build_lucene(
    passages: Iterable[Passage],
    directory: str | Path,
    progress: Callable[[int], None] | None = None,
    shard: int = SHARD,
) -> int:
    """Index passages, which may be a stream, into ``directory`` and return their number.

    After a kill, the same call continues after the last commit, once it has checked that the corpus still begins
    with the same passages. An existing index in the directory is replaced at the end.

    Args:
        progress: called with the number of passages indexed so far.

    Raises:
        UserError: if there are no passages, if an unfinished build used another corpus, or if the directory
            contains anything except an index or cannot be written.
    """
    directory = Path(directory).resolve()
    with working_directory(directory) as work:
        built = work / "index"
        (built / _ENGINE).mkdir(parents=True, exist_ok=True)
        engine = _tantivy().Index(_schema(), path=str(built / _ENGINE), reuse=True)
        engine.register_tokenizer(_ANALYZER, _analyzer())
        offsets = _write(iter(passages), work, engine, progress or (lambda _: None), shard)
        np.save(built / OFFSETS, np.array(offsets, dtype=np.int64))
        for lock in (built / _ENGINE).glob(".*.lock"):
            lock.unlink()
        write_manifest(built, FORMAT, VERSION, {}, len(offsets) - 1)
        publish(work, directory)
    return len(offsets) - 1


def _write(
    passages: Iterator[Passage], work: Path, engine: Any, progress: Callable[[int], None], size: int
) -> list[int]:
    """Add the passages that are not committed yet, one commit per shard.

    Returns:
        The offset of each passage's line, and the end of the last line.
    """
    engine.reload()
    done = engine.searcher().num_docs
    path = work / "index" / PASSAGES
    path.touch()
    offsets = [0]
    with path.open("r+b") as lines:
        for passage in islice(passages, done):
            line = encode(passage)
            if lines.read(len(line)) != line:
                break
            offsets.append(offsets[-1] + len(line))
        if len(offsets) - 1 != done:
            raise another_corpus(work)
        lines.truncate()
        progress(done)
        # With several threads, the order of equal scores would depend on timing.
        writer = engine.writer(heap_size=256_000_000, num_threads=1)
        while block := list(islice(passages, size)):
            for passage in block:
                line = encode(passage)
                writer.add_document(_document(passage, len(offsets) - 1))
                lines.write(line)
                offsets.append(offsets[-1] + len(line))
                if len(offsets) % 1000 == 0:
                    progress(len(offsets) - 1)
            lines.flush()
            os.fsync(lines.fileno())  # before the commit: every committed passage has its line
            writer.commit()
            progress(len(offsets) - 1)
        writer.wait_merging_threads()
    if len(offsets) == 1:
        clear(work)
        raise UserError("lucene: no passages to index; give a corpus with at least one")
    return offsets


def _schema() -> Any:
    builder = _tantivy().SchemaBuilder()
    for field in ("title", "text", _EVERYWHERE):
        builder.add_text_field(field, stored=False, tokenizer_name=_ANALYZER, index_option="position")
    return builder.add_unsigned_field("position", fast=True).build()


def _document(passage: Passage, position: int) -> Any:
    title, text = encodable(passage.title), encodable(passage.text)
    document = _tantivy().Document(title=title, text=text, **{_EVERYWHERE: f"{title} {text}"})
    document.add_unsigned("position", position)
    return document


def _analyzer() -> Any:
    tantivy = _tantivy()
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.remove_long(255))
    builder = builder.filter(tantivy.Filter.lowercase()).filter(tantivy.Filter.stopword("english"))
    return builder.filter(tantivy.Filter.stemmer("english")).build()


def _tantivy() -> Any:
    try:
        import tantivy
    except ImportError as error:
        raise not_installed(error) from error
    return tantivy
