"""Building and opening index directories of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rag_train.errors import UserError
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.index import bm25, dense, lucene
from rag_train.retrieval.index.directory import REMEDY, index_format
from rag_train.retrieval.index.encoder import EncoderConfig, family
from rag_train.retrieval.index.words import telling_scripts

INDEX_KINDS = ("bm25", "lucene", "dense")

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
    language: str = "english",
) -> int:
    """Index a corpus file and return the number of passages.

    Args:
        kind: one of `INDEX_KINDS`.
        progress: called with the number of passages processed so far.
        encoder: dense: a directory or hub name, used with the settings of its family.
        vectors: dense: FAISS's index factory string.
        search: dense: FAISS's search parameters.
        bf16: dense: encode in bfloat16.
        language: bm25, lucene: the language of the words, one of `rag_train.retrieval.index.words.LANGUAGES`.

    Raises:
        UserError: if the kind is unknown, if an option does not apply to the kind, or if the build fails.
    """
    if kind not in INDEX_KINDS:
        raise UserError(f"--kind {kind}: unknown; the kinds are {', '.join(INDEX_KINDS)}")
    if kind != "dense" and (encoder or search or bf16 or vectors != "Flat"):
        raise UserError("--encoder, --vectors, --search and --bf16 are for dense indexes; add --kind dense")
    if kind == "dense" and language != "english":
        raise UserError("--language is for bm25 and lucene indexes; a dense index has the languages of its encoder")
    passages = read_corpus(corpus) if kind == "dense" else telling_scripts(read_corpus(corpus), language)
    if kind == "bm25":
        return bm25.build_bm25(passages, output, bm25.BM25Config(language), progress)
    if kind == "lucene":
        return lucene.build_lucene(passages, output, language, progress)
    settings = family(encoder) if encoder else EncoderConfig()
    config = dense.DenseConfig(replace(settings, dtype="bfloat16" if bf16 else "float32"), vectors, search)
    return dense.build_dense(passages, output, config, progress)


def load_index(directory: str | Path) -> Index:
    """Open an index directory of any kind.

    Raises:
        UserError: if the directory is missing, not an index, or damaged.
    """
    kinds = {bm25.FORMAT: bm25.BM25Index, lucene.FORMAT: lucene.LuceneIndex, dense.FORMAT: dense.DenseIndex}
    format = index_format(Path(directory))
    if format not in kinds:
        raise UserError(f"index {directory}: not an index of rag-train; {REMEDY}")
    return kinds[format].load(directory)
