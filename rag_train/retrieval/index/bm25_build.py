"""Building a BM25 index from a stream of passages, in little memory, resumable after a kill.

Passages are tokenized in shards. Each shard writes its postings (token, passage, count) to a file in the working
directory; when all shards are complete, their postings are scored and sorted by token. The result equals what bm25s
computes in memory: Lucene's formula, with scores that only have to be added up.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rag_train.errors import UserError
from rag_train.jobs.files import write_text
from rag_train.retrieval.corpus import encode
from rag_train.retrieval.index.directory import (
    OFFSETS,
    PASSAGES,
    another_corpus,
    clear,
    publish,
    working_directory,
    write_manifest,
)
from rag_train.retrieval.index.text import BM25Config, indexed_text, tokenizer
from rag_train.schema import Passage

FORMAT = "rag-train-bm25"
VERSION = 2

VOCABULARY = "vocabulary.json"

SHARD = 100_000
"""Passages in a shard: about 150 MiB of memory at 100 words each."""


def build_bm25(
    passages: Iterable[Passage],
    directory: str | Path,
    config: BM25Config | None = None,
    progress: Callable[[int], None] | None = None,
    shard: int = SHARD,
) -> int:
    """Index passages, which may be a stream, into ``directory`` and return their number.

    After a kill, the same call skips completed shards, once it has checked that the corpus still begins with the
    same passages, and writes the same files. An existing index in the directory is replaced at the end.

    Args:
        progress: called with the number of passages read so far.

    Raises:
        UserError: if there are no passages, if an unfinished build used another corpus, or if the directory
            contains anything except an index or cannot be written.
    """
    config = config or BM25Config()
    directory = Path(directory).resolve()
    with working_directory(directory) as work:
        total = _read(iter(passages), work, config, progress or (lambda _: None), shard)
        _write_postings(work, config)
        write_manifest(work / "index", FORMAT, VERSION, asdict(config), total)
        publish(work, directory)
    return total


def _read(passages: Iterator[Passage], work: Path, config: BM25Config, progress: Any, size: int) -> int:
    """Write all missing shards, then the files of the whole corpus: passages, offsets, vocabulary."""
    settings = {"config": asdict(config), "shard": size}
    done = _resume(passages, work, settings, progress)
    tokenize = tokenizer(config)
    vocabulary: dict[str, int] = {}
    for state in done:
        for token in json.loads((work / f"{state['name']}.tokens.json").read_text(encoding="utf-8")):
            vocabulary[token] = len(vocabulary)
    total = sum(state["passages"] for state in done)
    with (work / PASSAGES).open("r+b") as lines:
        lines.truncate(sum(state["bytes"] for state in done))
        lines.seek(0, os.SEEK_END)
        while block := list(islice(passages, size)):
            known = len(vocabulary)
            name = f"shard-{len(done):05}"
            encoded = [encode(passage) for passage in block]
            rows = []
            for i, passage in enumerate(block):
                tokens = tokenize(indexed_text(passage))
                counts = Counter(vocabulary.setdefault(token, len(vocabulary)) for token in tokens)
                rows += [(token, i, count) for token, count in counts.items()]
                if (i + 1) % 1000 == 0:
                    progress(total + i + 1)
            lines.write(b"".join(encoded))
            lines.flush()
            os.fsync(lines.fileno())
            postings = np.array(rows, dtype=np.int32).reshape(-1, 3)
            postings = postings[np.argsort(postings[:, 0], kind="stable")]
            np.save(work / f"{name}.postings.npy", postings)
            np.save(work / f"{name}.sizes.npy", np.array([len(line) for line in encoded], dtype=np.int64))
            new_tokens = json.dumps(list(islice(vocabulary, known, None)), ensure_ascii=False)
            (work / f"{name}.tokens.json").write_text(new_tokens, encoding="utf-8")
            digest = hashlib.sha256(b"".join(encoded)).hexdigest()
            state = {"name": name, "passages": len(block), "bytes": sum(map(len, encoded)), "sha256": digest}
            write_text(work / f"{name}.json", json.dumps(settings | state))  # last: marks the shard as complete
            done.append(state)
            total += len(block)
            progress(total)
    if not total:
        clear(work)
        raise UserError("bm25: no passages to index; give a corpus with at least one")
    index = work / "index"
    shutil.rmtree(index, ignore_errors=True)
    index.mkdir()
    os.link(work / PASSAGES, index / PASSAGES)
    sizes = np.concatenate([np.load(work / f"{state['name']}.sizes.npy") for state in done])
    np.save(index / OFFSETS, np.concatenate([[0], np.cumsum(sizes)]))
    (index / VOCABULARY).write_text(json.dumps(list(vocabulary), ensure_ascii=False), encoding="utf-8")
    return total


def _resume(
    passages: Iterator[Passage], work: Path, settings: dict[str, Any], progress: Any
) -> list[dict[str, Any]]:
    """Return the completed shards of a killed build with the same settings, and skip their passages."""
    done: list[dict[str, Any]] = []
    while (path := work / f"shard-{len(done):05}.json").exists():
        state = json.loads(path.read_text())
        if {key: state[key] for key in settings} != settings:
            done = []
            break
        done.append(state)
    if not done:
        clear(work)
        (work / PASSAGES).touch()
    read = 0
    for state in done:
        digest = hashlib.sha256()
        for passage in islice(passages, state["passages"]):
            digest.update(encode(passage))
        if digest.hexdigest() != state["sha256"]:
            raise another_corpus(work)
        read += state["passages"]
        progress(read)
    return done


def _write_postings(work: Path, config: BM25Config) -> None:
    """Score the shards' postings and sort them by token: the columns of the sparse score matrix."""
    index = work / "index"
    shards = sorted(work.glob("shard-*.postings.npy"))
    vocabulary = len(json.loads((index / VOCABULARY).read_text(encoding="utf-8")))
    frequency = np.zeros(vocabulary, dtype=np.int64)
    lengths = []
    for shard in shards:
        postings = np.load(shard, mmap_mode="r")
        frequency += np.bincount(postings[:, 0], minlength=vocabulary)
        size = len(np.load(shard.with_name(shard.name.replace("postings", "sizes")), mmap_mode="r"))
        lengths.append(np.bincount(postings[:, 1], weights=postings[:, 2], minlength=size))
    total = sum(map(len, lengths))
    mean = float(np.concatenate(lengths).mean()) or 1.0
    idf = np.log1p((total - frequency + 0.5) / (frequency + 0.5))
    indptr = np.concatenate([[0], np.cumsum(frequency)])
    np.save(index / "indptr.npy", indptr)
    data = _empty(index / "data.npy", np.dtype(np.float32), int(indptr[-1]))
    indices = _empty(index / "indices.npy", np.dtype(np.int32), int(indptr[-1]))
    at, first = indptr[:-1].copy(), 0
    for shard, length in zip(shards, lengths, strict=True):
        token, passage, count = np.load(shard).T
        norm = config.k1 * (1 - config.b + config.b * length[passage] / mean)
        in_shard = np.bincount(token, minlength=vocabulary)
        # A posting's rank among the shard's postings of the same token: they are sorted by token.
        rank = np.arange(len(token)) - np.repeat(np.cumsum(in_shard) - in_shard, in_shard)
        place = at[token] + rank
        data[place] = idf[token] * count / (count + norm)
        indices[place] = passage + first
        at += in_shard
        first += len(length)
    for array in (data, indices):
        if isinstance(array, np.memmap):
            array.flush()


def _empty(path: Path, dtype: np.dtype, size: int) -> np.ndarray:
    if size == 0:  # an empty file cannot be mapped
        np.save(path, np.empty(0, dtype=dtype))
        return np.empty(0, dtype=dtype)
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(size,))
