"""Builds a BM25 index from a stream of passages: memory stays small however large the corpus, and a killed build
goes on where it was.

Passages are tokenised in shards. Each shard leaves its postings (token, passage, count) in a file of the working
directory ``.<name>.building`` beside the index; when all are there, they are scored and laid out by token. The
result is what bm25s computes in memory (Lucene's formula, scores ready to be added up).
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
from rag_train.retrieval.bm25 import FORMAT, VERSION, VOCABULARY, BM25Config, indexed_text, tokenizer
from rag_train.retrieval.corpus import encode
from rag_train.retrieval.directory import OFFSETS, PASSAGES, check_replaceable, put, write_manifest
from rag_train.schema import Passage

SHARD = 100_000
"""Passages a shard: about 150 MiB of memory at 100 words each."""


def build_bm25(
    passages: Iterable[Passage],
    directory: str | Path,
    config: BM25Config | None = None,
    progress: Callable[[int], None] | None = None,
    shard: int = SHARD,
) -> int:
    """Index passages, which may be a stream, into ``directory``; returns how many there were.

    The same call after a kill skips the shards that are done, having checked that the corpus still begins with
    the same passages, and ends with the same files. An index that was in the directory is replaced at the end.

    Args:
        progress: called with the number of passages read so far.

    Raises:
        UserError: if there are no passages, the corpus is not the one the build began with, or the directory
            holds anything but an index or cannot be written.
    """
    config = config or BM25Config()
    directory = Path(directory).resolve()
    work = directory.with_name(f".{directory.name}.building")
    try:
        check_replaceable(directory)
        total = _read(iter(passages), work, config, progress or (lambda _: None), shard)
        _lay_out(work, config)
        write_manifest(work / "index", FORMAT, VERSION, asdict(config), total)
        put(work / "index", directory)
        shutil.rmtree(work)
    except OSError as error:
        raise UserError(
            f"cannot write index {directory}: {error.strerror}; choose a writable place with enough room"
        ) from error
    return total


def _read(passages: Iterator[Passage], work: Path, config: BM25Config, progress: Any, size: int) -> int:
    """Write every shard that is not there yet, and what belongs to the whole: lines, offsets, vocabulary."""
    begun = {"config": asdict(config), "shard": size}
    done = _resume(passages, work, begun, progress)
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
            fresh = json.dumps(list(islice(vocabulary, known, None)), ensure_ascii=False)
            (work / f"{name}.tokens.json").write_text(fresh, encoding="utf-8")
            digest = hashlib.sha256(b"".join(encoded)).hexdigest()
            state = {"name": name, "passages": len(block), "bytes": sum(map(len, encoded)), "sha256": digest}
            _write_whole(work / f"{name}.json", json.dumps(begun | state))
            done.append(state)
            total += len(block)
            progress(total)
    if not total:
        raise UserError("bm25: no passages to index; give a corpus with at least one")
    index = work / "index"
    shutil.rmtree(index, ignore_errors=True)
    index.mkdir()
    os.link(work / PASSAGES, index / PASSAGES)
    sizes = np.concatenate([np.load(work / f"{state['name']}.sizes.npy") for state in done])
    np.save(index / OFFSETS, np.concatenate([[0], np.cumsum(sizes)]))
    (index / VOCABULARY).write_text(json.dumps(list(vocabulary), ensure_ascii=False), encoding="utf-8")
    return total


def _resume(passages: Iterator[Passage], work: Path, begun: dict[str, Any], progress: Any) -> list[dict[str, Any]]:
    """The shards of an earlier, killed build, their passages taken off the stream; none if it was another build."""
    done: list[dict[str, Any]] = []
    while (path := work / f"shard-{len(done):05}.json").exists():
        state = json.loads(path.read_text())
        if {key: state[key] for key in begun} != begun:
            done = []
            break
        done.append(state)
    if not done:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        (work / PASSAGES).touch()
    read = 0
    for state in done:
        digest = hashlib.sha256()
        for passage in islice(passages, state["passages"]):
            digest.update(encode(passage))
        if digest.hexdigest() != state["sha256"]:
            raise UserError(
                f"{work}: the unfinished build there is of another corpus; delete that directory and start again"
            )
        read += state["passages"]
        progress(read)
    return done


def _lay_out(work: Path, config: BM25Config) -> None:
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
        here = np.bincount(token, minlength=vocabulary)
        rank = np.arange(len(token)) - np.repeat(np.cumsum(here) - here, here)  # the how-manieth of its token
        place = at[token] + rank
        data[place] = idf[token] * count / (count + norm)
        indices[place] = passage + first
        at += here
        first += len(length)
    for array in (data, indices):
        if isinstance(array, np.memmap):
            array.flush()


def _empty(path: Path, dtype: np.dtype, size: int) -> np.ndarray:
    if size == 0:  # nothing can be mapped
        np.save(path, np.empty(0, dtype=dtype))
        return np.empty(0, dtype=dtype)
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(size,))


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)
