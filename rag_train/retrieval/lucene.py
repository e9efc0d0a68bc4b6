"""Lucene-syntax search (LevelRAG's sparse searcher), embedded: tantivy, a search engine library in Lucene's manner.

Queries are those of `lucene_query`: any string gets an answer. `ElasticRetriever` asks the same of a cluster.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rag_train.errors import UserError, not_installed
from rag_train.retrieval.corpus import PassageStore, encodable, encode
from rag_train.retrieval.directory import (
    OFFSETS,
    PASSAGES,
    changed,
    check_replaceable,
    open_passages,
    put,
    read_manifest,
    write_manifest,
)
from rag_train.retrieval.lucene_query import Clause, parse
from rag_train.schema import Passage

FORMAT = "rag-train-lucene"
VERSION = 1

SHARD = 50_000
"""Passages between commits: what a killed build loses at most."""

_ENGINE = "tantivy"
_ANALYZER = "rag_train_english"
_EVERYWHERE = "all"


class LuceneIndex:
    """A tantivy index with its passages; make one by `build` or `load`.

    Scores are BM25's, with Lucene's k1 = 1.2 and b = 0.75, over titles and texts as one; ``title:`` and ``text:``
    search one of them. Words are lower-cased, less English stop words, stemmed.

    Attributes:
        passages: the passages in corpus order.
        corpus_sha256: of the passages as JSON Lines; it names the corpus in records made with this index.
    """

    name = "lucene"

    def __init__(self, engine: Any, passages: PassageStore, corpus_sha256: str):
        self.passages = passages
        self.corpus_sha256 = corpus_sha256
        self._schema = engine.schema
        self._searcher = engine.searcher()
        self._analyzer = _analyzer()

    def __len__(self) -> int:
        return len(self.passages)

    @classmethod
    def build(cls, passages: Iterable[Passage]) -> LuceneIndex:
        """Index passages that fit in memory; `build_lucene` indexes any number into a directory.

        Raises:
            UserError: if there are no passages.
        """
        with TemporaryDirectory() as directory:
            build_lucene(passages, Path(directory, "index"))
            return cls.load(Path(directory, "index"))

    @classmethod
    def load(cls, directory: str | Path) -> LuceneIndex:
        """Open a saved index, which stays on disk, after checking every file's size and SHA-256.

        Raises:
            UserError: as `read_manifest`.
        """
        directory = Path(directory)
        manifest = read_manifest(directory, FORMAT, VERSION)
        try:
            engine = _tantivy().Index.open(str(directory / _ENGINE))
            passages = open_passages(directory)
        except (OSError, ValueError) as error:
            raise changed(directory, "index.json") from error
        engine.register_tokenizer(_ANALYZER, _analyzer())
        return cls(engine, passages, manifest.corpus_sha256)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """For each query at most ``k`` passages that it matches, best first, with scores.

        Equal scores are in corpus order. A query that excludes only, or holds no word but stop words, gets an
        empty list.

        Raises:
            ValueError: if ``k`` is less than 1.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least one passage")
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> list[Passage]:
        compiled = self._compiled(parse(query))
        if compiled is None:
            return []
        hits = self._searcher.search(compiled, limit=min(k, len(self)), count=False).hits
        positions = self._searcher.fast_field_values("position", [address for _, address in hits])
        ranked = sorted(zip((-score for score, _ in hits), positions, strict=True))
        return [self.passages[position].model_copy(update={"score": -score}) for score, position in ranked]

    def _compiled(self, clauses: Sequence[Clause]) -> Any | None:
        """The clauses as tantivy's query; None if they cannot match anything."""
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
            else:  # with the gaps that stop words leave
                words = [(token.position, token.text) for token in tokens]
                part = tantivy.Query.phrase_query(self._schema, field, words)
            if clause.boost != 1:
                part = tantivy.Query.boost_query(part, clause.boost)
            parts.append((occurs[clause.occur], part))
            matching |= clause.occur != "must_not"
        return tantivy.Query.boolean_query(parts) if matching else None


def build_lucene(
    passages: Iterable[Passage],
    directory: str | Path,
    progress: Callable[[int], None] | None = None,
    shard: int = SHARD,
) -> int:
    """Index passages, which may be a stream, into ``directory``; returns how many there were.

    The same call after a kill goes on after the last commit, having checked that the corpus still begins with the
    same passages. An index that was in the directory is replaced at the end.

    Args:
        progress: called with the number of passages indexed so far.

    Raises:
        UserError: if there are no passages, the corpus is not the one the build began with, or the directory
            holds anything but an index or cannot be written.
    """
    directory = Path(directory).resolve()
    work = directory.with_name(f".{directory.name}.building")
    built = work / "index"
    try:
        check_replaceable(directory)
        (built / _ENGINE).mkdir(parents=True, exist_ok=True)
        engine = _tantivy().Index(_schema(), path=str(built / _ENGINE), reuse=True)
        engine.register_tokenizer(_ANALYZER, _analyzer())
        offsets = _write(iter(passages), work, engine, progress or (lambda _: None), shard)
        np.save(built / OFFSETS, np.array(offsets, dtype=np.int64))
        for lock in (built / _ENGINE).glob(".*.lock"):
            lock.unlink()
        write_manifest(built, FORMAT, VERSION, {}, len(offsets) - 1)
        put(built, directory)
        shutil.rmtree(work)
    except OSError as error:
        raise UserError(
            f"cannot write index {directory}: {error.strerror}; choose a writable place with enough room"
        ) from error
    return len(offsets) - 1


def _write(
    passages: Iterator[Passage], work: Path, engine: Any, progress: Callable[[int], None], size: int
) -> list[int]:
    """Add what is not committed yet, a shard a commit; returns where each passage's line starts, and the end."""
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
            raise UserError(
                f"{work}: the unfinished build there is of another corpus; delete that directory and start again"
            )
        lines.truncate()
        progress(done)
        # One thread, so that the order of equally good passages does not depend on which was faster.
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
            os.fsync(lines.fileno())  # a committed passage has its line
            writer.commit()
            progress(len(offsets) - 1)
        writer.wait_merging_threads()
    if len(offsets) == 1:
        shutil.rmtree(work)
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
