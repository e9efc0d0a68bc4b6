"""Dense retrieval: passages as vectors in a FAISS index, ranked by inner product.

``kind`` is FAISS's index factory string: ``Flat`` is exact; ``IVF4096,Flat``, ``IVF4096,PQ64`` and ``HNSW32`` are
faster or smaller. If the encoder's ``normalize`` is set, inner products are cosines. The index stores the encoder's
settings and the vector of a fixed query, so that it is never searched with a different encoder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import TypeAdapter, ValidationError

from rag_train.errors import UserError, not_installed
from rag_train.retrieval.base import check_number
from rag_train.retrieval.corpus import PassageStore
from rag_train.retrieval.index.directory import (
    MANIFEST,
    OFFSETS,
    PASSAGES,
    REMEDY,
    StoredIndex,
    changed,
    inconsistent,
    load_array,
    open_passages,
    publish,
    read_manifest,
    shards,
    unreadable,
    working_directory,
    write_manifest,
)
from rag_train.retrieval.index.encoder import Encoder, EncoderConfig, family
from rag_train.retrieval.index.exact import largest_products
from rag_train.retrieval.kinds import index_kind
from rag_train.schema import Passage

FORMAT = "rag-train-dense"
VERSION = 1

SHARD = 10_000
"""Passages encoded at a time; a killed build loses at most this many."""

_VECTORS = "vectors.faiss"
_PROBE = "probe.npy"
_PROBE_TEXT = "Which film did the director of Inception make next?"
_FILES = {PASSAGES, OFFSETS, _VECTORS, _PROBE}
_TRAINING = 256
"""Training vectors for each centroid of k-means; FAISS uses no more."""


@dataclass(frozen=True)
class DenseConfig:
    """Settings for building and searching an index.

    Attributes:
        encoder: settings of the encoder.
        kind: FAISS's index factory string.
        search: FAISS's search parameters, such as ``nprobe=32`` (IVF) or ``efSearch=128`` (HNSW).
    """

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    kind: str = "Flat"
    search: str = ""


_CONFIG = TypeAdapter(DenseConfig)


def build_dense(
    passages: Iterable[Passage],
    directory: str | Path,
    config: DenseConfig | None = None,
    progress: Callable[[int], None] | None = None,
    shard: int = SHARD,
) -> int:
    """Encode and index passages, which may be a stream, into ``directory`` and return their number.

    Under `accelerate launch` the processes divide the shards between them. After a kill, the same call encodes only
    the missing shards: a shard's file is named by a hash of its passages and of the encoder's settings. An existing
    index in the directory is replaced at the end.

    Args:
        progress: called with the number of passages encoded so far.

    Raises:
        UserError: if there are no passages, if FAISS rejects ``kind`` or ``search``, if the encoder cannot be
            loaded, or if the directory contains anything except an index or cannot be written.
    """
    from accelerate import PartialState

    config = config or DenseConfig()
    directory = Path(directory).resolve()
    state = PartialState()
    encoder = Encoder(config.encoder, str(state.device))
    empty = _empty_index(config, encoder.dimension)
    note = progress or (lambda _: None)
    with working_directory(directory, state.is_main_process) as work:
        state.wait_for_everyone()
        files, total = [], 0
        settings = [FORMAT, VERSION, encoder.identity]
        for block, path in shards(passages, work, settings, shard, note, state.is_main_process):
            if len(files) % state.num_processes == state.process_index and not path.exists():
                _write_vectors(path, block, encoder, lambda done, before=total: note(before + done))
            files.append(path)
            total += len(block)
        state.wait_for_everyone()
        if state.is_main_process:
            _faiss().write_index(_filled(empty, files), str(work / "index" / _VECTORS))
            np.save(work / "index" / _PROBE, encoder.encode_queries([_PROBE_TEXT]))
            write_manifest(work / "index", FORMAT, VERSION, asdict(config), total, encoder.weights)
            publish(work, directory)
        state.wait_for_everyone()
    return total


def _write_vectors(path: Path, block: list[Passage], encoder: Encoder, note: Callable[[int], None]) -> None:
    vectors = []
    for start in range(0, len(block), 512):
        vectors.append(encoder.encode_passages(block[start : start + 512]))
        note(min(start + 512, len(block)))
    with path.with_suffix(".part").open("wb") as file:
        np.save(file, np.concatenate(vectors))
    path.with_suffix(".part").replace(path)


def _flat(index) -> np.ndarray | None:
    """Return the vectors of a flat index on the CPU, of shape (n, d), without a copy; None for any other index."""
    faiss = _faiss()
    if type(index) is not faiss.IndexFlat and type(index) is not faiss.IndexFlatIP:
        return None
    return faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d).reshape(index.ntotal, index.d)


def _empty_index(config: DenseConfig, dimension: int):
    faiss = _faiss()
    try:
        index = faiss.index_factory(dimension, config.kind, faiss.METRIC_INNER_PRODUCT)
        if config.search:
            faiss.ParameterSpace().set_index_parameters(index, config.search)
    except RuntimeError as error:
        reason = str(error).rpartition(": ")[2]
        raise UserError(
            f"dense: FAISS rejects {config.kind!r}, {config.search!r} for {dimension} dimensions ({reason}); "
            "give for example --vectors Flat, or --vectors IVF1024,PQ64 --search nprobe=32"
        ) from error
    return index


def _filled(index, shards: list[Path]):
    """Train the index, if its kind requires it, on evenly spaced vectors of the corpus; then add all vectors."""
    faiss = _faiss()
    if not index.is_trained:
        sizes = [len(np.load(path, mmap_mode="r")) for path in shards]
        inverted = faiss.try_extract_index_ivf(index)
        wanted = _TRAINING * max(256, inverted.nlist if inverted is not None else 0)
        step = max(1, sum(sizes) // wanted)
        sample = np.concatenate([np.load(path, mmap_mode="r")[::step] for path in shards])
        if inverted is not None and len(sample) < inverted.nlist:
            raise UserError(
                f"dense: {sum(sizes):,} passages are too few for {inverted.nlist} clusters; "
                f"give for example --vectors IVF{max(1, sum(sizes) // 39)},Flat, or --vectors Flat"
            )
        try:
            index.train(sample)
        except RuntimeError as error:
            raise UserError(
                f"dense: {sum(sizes):,} passages are too few to train this index; give --vectors Flat"
            ) from error
    for path in shards:
        index.add(np.load(path))
    return index


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.linalg.norm(a - b) <= 0.01 * np.linalg.norm(b))


def _faiss():
    try:
        import faiss
    except ImportError as error:
        raise not_installed(error, "cpu") from error
    return faiss


class DenseIndex(StoredIndex):
    """A FAISS index with its passages, whose order is that of the vectors, created by `build` or `load`.

    Attributes:
        encoder: the encoder of the queries.
    """

    name, format, version, write = "dense", FORMAT, VERSION, staticmethod(build_dense)

    def __init__(
        self, passages: PassageStore, corpus_sha256: str, config: DenseConfig, encoder: Encoder, vectors: Any
    ):
        super().__init__(passages, corpus_sha256, kind=config.kind, search=config.search, encoder=encoder.identity)
        self.encoder = encoder
        self._vectors = vectors
        self._flat = _flat(vectors)

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Open a saved index after checking the size and SHA-256 of every file, and the encoder.

        Vectors and passages stay on disk until they are used.

        Raises:
            UserError: if `read_manifest` rejects the directory, if a file's contents are not an index's, if the
                encoder is not on this machine, or if it is not the one that built the index.
        """
        faiss = _faiss()
        directory = Path(directory)
        manifest = read_manifest(directory, FORMAT, VERSION, _FILES)
        try:
            config = _CONFIG.validate_json(json.dumps(manifest.config), strict=True, extra="forbid")
        except ValidationError as error:
            raise changed(directory, MANIFEST) from error
        try:
            passages = open_passages(directory, manifest.passages)
            probe = load_array(directory, _PROBE, np.dtype(np.float32), dimensions=2)
            vectors = faiss.read_index(str(directory / _VECTORS), faiss.IO_FLAG_MMAP_IFC)
            if config.search:
                faiss.ParameterSpace().set_index_parameters(vectors, config.search)
        except OSError as error:
            raise unreadable(directory, error) from error
        except RuntimeError as error:  # FAISS checks what it reads
            raise inconsistent(directory, _VECTORS) from error
        encoder = Encoder(config.encoder, download=False)
        if (vectors.ntotal, vectors.d) != (len(passages), encoder.dimension):
            raise inconsistent(directory, _VECTORS)
        other_weights = manifest.encoder_sha256 not in ((), encoder.weights)
        if other_weights or not _same(encoder.encode_queries([_PROBE_TEXT]), probe):
            model = config.encoder.query_model or config.encoder.model
            raise UserError(f"index {directory}: the encoder {model} has changed since it was built; {REMEDY}")
        if faiss.get_num_gpus() > 0 and "HNSW" not in config.kind:  # FAISS has no HNSW for GPUs
            vectors = faiss.index_cpu_to_all_gpus(vectors)
        return cls(passages, manifest.corpus_sha256, config, encoder, vectors)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Return the ``k`` passages with the largest inner products for each query, scored by them.

        Equal scores are in corpus order. Approximate indexes may find fewer than ``k`` passages.
        """
        check_number(k)
        scores, positions = self.search_vectors(self.encoder.encode_queries(queries), k)
        known = (positions >= 0) & (positions < len(self))  # a stranger's index can hold any number
        return [
            self.passages.found(row[kept].tolist(), values[kept].tolist())
            for row, values, kept in zip(positions, scores, known, strict=True)
        ]

    def search_vectors(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores and positions, each of shape (n, k), for query vectors of shape (n, dimension).

        A position is -1 if fewer than ``k`` passages were found.
        """
        k = min(k, len(self))
        if self._flat is not None:
            return largest_products(vectors, self._flat, k)
        scores, positions = self._vectors.search(vectors, k)
        order = np.lexsort((positions, -scores), axis=1)
        return np.take_along_axis(scores, order, 1), np.take_along_axis(positions, order, 1)


@index_kind("dense", "plain text, by the vectors of an encoder", FORMAT, DenseIndex.load)
def _build(
    passages: Iterable[Passage],
    directory: Path,
    progress: Callable[[int], None],
    *,
    encoder: str | None = None,
    vectors: str = "Flat",
    search: str = "",
    bf16: bool = False,
) -> int:
    settings = family(encoder) if encoder else EncoderConfig()
    config = DenseConfig(replace(settings, dtype="bfloat16" if bf16 else "float32"), vectors, search)
    return build_dense(passages, directory, config, progress)
