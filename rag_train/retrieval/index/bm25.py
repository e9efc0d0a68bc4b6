"""BM25 on the library bm25s (Lù 2024): scores are computed at indexing time; a search only adds them up.

The index stays on disk and is mapped into memory. bm25s and numba are imported on first use: they take long.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import psutil
from pydantic import StrictStr, TypeAdapter, ValidationError

from rag_train.errors import UserError
from rag_train.provenance import cores
from rag_train.retrieval.base import check_number
from rag_train.retrieval.corpus import PassageStore
from rag_train.retrieval.index.directory import (
    MANIFEST,
    OFFSETS,
    PASSAGES,
    StoredIndex,
    changed,
    inconsistent,
    load_array,
    open_passages,
    publish,
    read_manifest,
    rising,
    shards,
    unreadable,
    working_directory,
    write_manifest,
)
from rag_train.retrieval.index.words import LANGUAGES, LONGEST_QUERY, Words, indexed_text, telling_scripts
from rag_train.retrieval.kinds import index_kind
from rag_train.schema import Passage

FORMAT = "rag-train-bm25"
VERSION = 3

SHARD = 10_000
"""Passages read at a time; a killed build loses at most this many."""

_VOCABULARY = "vocabulary.json"
_ARRAYS = {"data": np.float32, "indices": np.int32, "indptr": np.int64}
_FILES = {PASSAGES, OFFSETS, _VOCABULARY, *(f"{name}.npy" for name in _ARRAYS)}
_TOKENS = TypeAdapter(list[StrictStr])
_FORMULA = {"k1": 1.5, "b": 0.75}
"""How slowly repetitions of a term saturate, and how strongly long passages are discounted."""
_BLOCK = 1 << 24
"""Postings checked at a time."""
_POSTING = 24
"""Bytes of memory that bm25s takes for each posting while it builds: three arrays, and two of them sorted."""
_CHUNK = 16
"""Fewest queries that are worth a thread of their own."""
_SPARE = 16
"""Passages found beyond those asked for: bm25s keeps any of the passages that share the last place."""
_REPEATED = 10
"""Times that a word of a query counts at most, so that no query takes long."""


def build_bm25(
    passages: Iterable[Passage],
    directory: str | Path,
    language: str = "english",
    progress: Callable[[int], None] | None = None,
    shard: int = SHARD,
) -> int:
    """Index passages, which may be a stream, into ``directory`` and return their number.

    After a kill, the same call reads the words of the missing shards only, and writes the same files. An existing
    index in the directory is replaced at the end.

    Args:
        language: one of `rag_train.retrieval.index.words.LANGUAGES`.
        progress: called with the number of passages read so far.

    Raises:
        UserError: if the language is unknown, if there are no passages, if bm25s would need more memory than there
            is, or if the directory contains anything except an index or cannot be written.
    """
    Words(language)  # refuses unknown languages
    directory = Path(directory).resolve()
    with working_directory(directory) as work:
        vocabulary: dict[str, int] = {}
        files, postings = [], 0
        for block, path in shards(passages, work, [FORMAT, VERSION, language], shard, progress):
            if not path.exists():
                _write_ids(path, block, language, vocabulary)
            with np.load(path) as stored:
                for token in json.loads(stored["tokens"].tobytes()):
                    vocabulary.setdefault(token, len(vocabulary))
                postings += int(stored["postings"])
            _check_memory(postings)
            files.append(path)
        ids = _Ids(files)
        _write_postings(work / "index", ids, vocabulary)
        write_manifest(work / "index", FORMAT, VERSION, {"language": language} | _FORMULA, len(ids))
        publish(work, directory)
    return len(ids)


def _write_ids(path: Path, block: list[Passage], language: str, vocabulary: dict[str, int]) -> None:
    """Write the ids of a shard's words, with those that are new in the vocabulary."""
    words, known = Words(language), len(vocabulary)
    ids = [
        [vocabulary.setdefault(word, len(vocabulary)) for word in words(indexed_text(passage))] for passage in block
    ]
    tokens = json.dumps(list(vocabulary)[known:]).encode()
    with path.with_suffix(".part").open("wb") as file:
        np.savez(
            file,
            ids=np.array([id for row in ids for id in row], dtype=np.int32),
            lengths=np.array(list(map(len, ids)), dtype=np.int64),
            postings=np.int64(sum(len(set(row)) for row in ids)),
            tokens=np.frombuffer(tokens, dtype=np.uint8),
        )
    path.with_suffix(".part").replace(path)


class _Ids:
    """The ids of the words of each passage, read from the shards' files whenever they are iterated."""

    def __init__(self, files: Sequence[Path]):
        self._files = files
        self._passages = sum(len(np.load(file)["lengths"]) for file in files)

    def __len__(self) -> int:
        return self._passages

    def __iter__(self) -> Iterator[list[int]]:
        for file in self._files:
            with np.load(file) as stored:
                ids, ends = stored["ids"].tolist(), np.cumsum(stored["lengths"]).tolist()
            for start, end in zip([0, *ends], ends, strict=False):
                yield ids[start:end]


def _check_memory(postings: int) -> None:
    free = psutil.virtual_memory().available
    if (needed := postings * _POSTING) > free:
        raise UserError(
            f"bm25: the build takes more than {needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are "
            "free; add --kind lucene, which builds on disk"
        )


def _write_postings(index: Path, ids: _Ids, vocabulary: dict[str, int]) -> None:
    engine = _bm25s().BM25(**_FORMULA, method="lucene", backend="numba")
    with np.errstate(invalid="ignore"):  # of a corpus without words
        engine.index(SimpleNamespace(ids=ids, vocab=vocabulary), create_empty_token=False, show_progress=False)
    for name, kind in _ARRAYS.items():
        np.save(index / f"{name}.npy", engine.scores[name].astype(kind, copy=False))
    (index / _VOCABULARY).write_text(json.dumps(list(vocabulary), ensure_ascii=False), encoding="utf-8")


class BM25Index(StoredIndex):
    """A BM25 index, created by `build` or `load`. Scores are Lucene's, without the factor k1 + 1."""

    name, format, version, write = "bm25", FORMAT, VERSION, staticmethod(build_bm25)
    threads = cores()
    """Number of searches at the same time: they do not hold the GIL."""

    def __init__(
        self,
        passages: PassageStore,
        corpus_sha256: str,
        config: dict[str, Any],
        vocabulary: dict[str, int],
        postings: dict[str, np.ndarray],
    ):
        super().__init__(passages, corpus_sha256, config=config)
        self._language = config["language"]
        self._vocabulary = vocabulary
        self._engine = _bm25s().BM25(backend="numba")
        self._engine.scores = {**postings, "num_docs": len(passages)}
        self._engine.nonoccurrence_array = None
        self._engine.unique_token_ids_set = range(len(vocabulary))

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Open a saved index after checking the size and SHA-256 of every file.

        Only the vocabulary is read into memory.

        Raises:
            UserError: if the directory is missing, not a BM25 index, incomplete, damaged, or of another version.
        """
        directory = Path(directory)
        manifest = read_manifest(directory, FORMAT, VERSION, _FILES)
        language = manifest.config.get("language")
        if language not in LANGUAGES or manifest.config != {"language": language} | _FORMULA:
            raise changed(directory, MANIFEST)
        try:
            postings = {
                name: load_array(directory, f"{name}.npy", np.dtype(kind)) for name, kind in _ARRAYS.items()
            }
            passages = open_passages(directory, manifest.passages)
            tokens = _TOKENS.validate_json((directory / _VOCABULARY).read_bytes())
        except ValidationError as error:
            raise inconsistent(directory, _VOCABULARY) from error
        except OSError as error:
            raise unreadable(directory, error) from error
        _check_postings(directory, len(tokens), manifest.passages, **postings)
        vocabulary = {token: i for i, token in enumerate(tokens)}
        return cls(passages, manifest.corpus_sha256, manifest.config, vocabulary, postings)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return for each query at most ``k`` passages that share a word with it, best first, with scores.

        Equal scores are in corpus order. A query without a known word gets an empty list. Only the first
        `LONGEST_QUERY` characters of a query count, and ten repetitions of a word.
        """
        check_number(k)
        pool, threads = _pool()
        size = len(queries) if threads == 1 else -(-len(queries) // (4 * threads))
        size = max(size, _CHUNK)
        chunks = [queries[start : start + size] for start in range(0, len(queries), size)]
        found = (pool.map if len(chunks) > 1 else map)(lambda chunk: self._search(chunk, k), chunks)
        return [passages for chunk in found for passages in chunk]

    def _search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        words = Words(self._language)
        asked = [self._ids(words(query[:LONGEST_QUERY])) for query in queries]
        best = iter(self._best([ids for ids in asked if ids], k, k + _SPARE))
        return [self.passages.found(*next(best)) if ids else [] for ids in asked]

    def _ids(self, words: list[str]) -> list[int]:
        ids = [id for word in words if (id := self._vocabulary.get(word)) is not None]
        if len(ids) <= _REPEATED:
            return ids
        times: Counter[int] = Counter()
        kept = []
        for id in ids:
            times[id] += 1
            if times[id] <= _REPEATED:
                kept.append(id)
        return kept

    def _best(self, asked: list[list[int]], k: int, deep: int) -> list[tuple[list[int], list[float]]]:
        """Return positions and scores of the best passages for each query; ``deep`` are looked at, or more."""
        if not asked:
            return []
        deep = min(deep, len(self))
        found = self._engine.retrieve(asked, k=deep, n_threads=1, show_progress=False)
        best = []
        for ids, positions, scores in zip(asked, found.documents, found.scores, strict=True):
            if deep < len(self) and scores[-1] == scores[k - 1] > 0:  # others may share the last place
                best += self._best([ids], k, 8 * deep)
                continue
            order = np.lexsort((positions, -scores))[: min(k, np.count_nonzero(scores > 0))]
            best.append((positions[order].tolist(), scores[order].tolist()))
        return best


def _check_postings(
    directory: Path, tokens: int, passages: int, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray
) -> None:
    """Raise UserError if the compiled loop, which checks no bounds, would read or write outside of the arrays."""
    if len(indptr) != tokens + 1 or not rising(indptr, len(indices)):
        raise inconsistent(directory, "indptr.npy")
    if len(data) != len(indices):
        raise inconsistent(directory, "data.npy")
    for start in range(0, len(indices), _BLOCK):
        block = indices[start : start + _BLOCK]
        if block.min() < 0 or block.max() >= passages:
            raise inconsistent(directory, "indices.npy")


@cache
def _bm25s() -> Any:
    """Return the library; its compiled search is kept on disk, because compiling takes ten seconds."""
    import bm25s
    from bm25s.numba import retrieve_utils

    with suppress(RuntimeError):  # no place to write to
        retrieve_utils._retrieve_internal_jitted_serial.enable_caching()
    return bm25s


@cache
def _pool() -> tuple[ThreadPoolExecutor, int]:
    """Return the threads of all searches, and their number.

    numba's own, whose waiting makes PyTorch's threads twenty times slower, cannot be called by several threads.
    """
    import numba

    threads = numba.config.NUMBA_NUM_THREADS  # pyrefly: ignore[missing-attribute]
    return ThreadPoolExecutor(threads, "bm25"), threads


@index_kind("bm25", "plain text", FORMAT, BM25Index.load)
def _build(
    passages: Iterable[Passage], directory: Path, progress: Callable[[int], None], *, language: str = "english"
) -> int:
    return build_bm25(telling_scripts(passages, language), directory, language, progress)
