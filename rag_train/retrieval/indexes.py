"""Index directories of every kind: built from a corpus file, opened without knowing which kind they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rag_train.errors import UserError
from rag_train.retrieval import bm25, bm25_build, dense, lucene
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.directory import REMEDY, index_format
from rag_train.retrieval.encoder import EncoderConfig, family

KINDS = ("bm25", "lucene", "dense")

Index = bm25.BM25Index | lucene.LuceneIndex | dense.DenseIndex


def build_index(
    kind: str,
    corpus: Path,
    output: Path,
    progress: Callable[[int], None],
    *,
    encoder: str | None = None,
    vectors: str = "Flat",
    search: str = "",
    bf16: bool = False,
) -> int:
    """Index a corpus file; returns how many passages there were.

    Args:
        kind: one of `KINDS`.
        encoder: dense: a directory or hub name, asked in the way of its family.
        vectors: dense: FAISS's index factory string.
        search: dense: FAISS's search parameters.
        bf16: dense: encode in bfloat16.

    Raises:
        UserError: if the kind is unknown or an option is not of the kind; else as the kind's build.
    """
    if kind not in KINDS:
        raise UserError(f"--kind {kind}: unknown; the kinds are {', '.join(KINDS)}")
    if kind != "dense" and (encoder or search or bf16 or vectors != "Flat"):
        raise UserError("--encoder, --vectors, --search and --bf16 are for dense indexes; add --kind dense")
    if kind == "bm25":
        return bm25_build.build_bm25(read_corpus(corpus), output, progress=progress)
    if kind == "lucene":
        return lucene.build_lucene(read_corpus(corpus), output, progress)
    settings = family(encoder) if encoder else EncoderConfig()
    config = dense.DenseConfig(replace(settings, dtype="bfloat16" if bf16 else "float32"), vectors, search)
    return dense.build_dense(read_corpus(corpus), output, config, progress)


def load_index(directory: str | Path) -> Index:
    """Open what `rag-train index` made, whichever kind.

    Raises:
        UserError: if the directory is missing, is no index, or is damaged.
    """
    kinds = {bm25.FORMAT: bm25.BM25Index, lucene.FORMAT: lucene.LuceneIndex, dense.FORMAT: dense.DenseIndex}
    format = index_format(Path(directory))
    if format not in kinds:
        raise UserError(f"index {directory}: not an index of rag-train; {REMEDY}")
    return kinds[format].load(directory)
