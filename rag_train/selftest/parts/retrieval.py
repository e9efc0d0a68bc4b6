"""The mini world with its BM25 index, and a dense index."""

from __future__ import annotations

from pathlib import Path

from rag_train.doctor.packages import faiss_gpus
from rag_train.jobs.files import read_records
from rag_train.schema import Passage
from rag_train.selftest.registry import part
from rag_train.selftest.work import Work

WORLD, BM25 = "world", "bm25"
"""Folders of the mini world and of its index."""
ENCODED = 400
"""Passages of the dense index."""


@part("world and BM25 index", short=True)
def world(work: Work) -> str:
    """Write the mini world, index its passages, and find them by their titles."""
    work.command("world", work.folder / WORLD)
    work.command("index", work.folder / WORLD / "corpus.jsonl", work.folder / BM25)
    corpus = read_records(work.folder / WORLD / "corpus.jsonl", Passage)
    return f"{_found(work.folder / BM25, corpus)} of {len(corpus):,} passages found by their text"


@part("dense encoding and search", short=True, after=["world and BM25 index"])
def dense(work: Work) -> str:
    """Encode passages, and find each by its text, on the GPU where there is one."""
    corpus = read_records(work.folder / WORLD / "corpus.jsonl", Passage)[:ENCODED]
    file = work.folder / "dense.jsonl"
    file.write_text("".join(f"{passage.model_dump_json()}\n" for passage in corpus))
    work.command("index", file, work.folder / "dense", "--kind", "dense")
    count = _found(work.folder / "dense", corpus)
    place, gpus = faiss_gpus()
    assert gpus or not work.gpus, f"{place} searches on the CPU: it is the build for CPUs, or sees no GPU"
    return f"{count} of {len(corpus):,} passages found by their text; FAISS on {gpus or 'no'} GPUs"


def _found(index: Path, corpus: list[Passage]) -> int:
    """Return how many passages are the first that their own text finds. Raises AssertionError if few are."""
    from rag_train.retrieval.open import open_retriever

    found = open_retriever(str(index)).search([f"{passage.title} {passage.text}" for passage in corpus], 1)
    count = sum(bool(got) and got[0].id == passage.id for got, passage in zip(found, corpus, strict=True))
    assert count >= 0.9 * len(corpus), f"only {count} of {len(corpus)} passages are found by their own text"
    return count
