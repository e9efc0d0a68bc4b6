"""Recall and speed of the retrievers on real questions, as the README's table has them.

    python -m eval.bench_retrievers --data DIR

DIR holds corpus.jsonl and the released files of `DATASETS`. Every retriever indexes the same corpus and is asked
the same questions in this process; indexing is not timed. ``--reranker`` adds a row; `eval.train_reranker` makes
one from the questions' training files. Writes results/retrievers.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eval.datasets import load_questions
from eval.retrieval import evaluate, gold_passages, gold_sentences, retrieval_table
from rag_train.errors import UserError
from rag_train.progress import console, progress, up_to
from rag_train.provenance import code_version, machine
from rag_train.retrieval.base import Retriever
from rag_train.retrieval.bm25 import BM25Index
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.dense import DenseConfig, DenseIndex, build_dense
from rag_train.retrieval.encoder import EncoderConfig
from rag_train.retrieval.fusion import FusedRetriever
from rag_train.retrieval.lucene import LuceneIndex
from rag_train.retrieval.rerank import CrossEncoderReranker, RerankedRetriever, Reranker
from rag_train.schema import Passage

DATASETS = {
    "HotpotQA": "hotpotqa/dev_hard.json",
    "2WikiMultihopQA": "2wikimultihopqa/dev.json",
    "MuSiQue": "musique/dev.jsonl",
    "PopQA": "popqa/with_passages.json",
}
_WITH_SENTENCES = ("HotpotQA", "2WikiMultihopQA")
DEPTH = 50
"""Passages that are reranked (DualRAG's setting)."""


def retrievers(corpus: list[Passage], work: Path, reranker: Reranker | None) -> Iterator[tuple[str, Retriever]]:
    """Each row of the table, made when its turn comes."""
    bm25 = BM25Index.build(corpus)
    yield "BM25", bm25
    yield "Lucene (tantivy)", LuceneIndex.build(corpus)
    directory = work / "dense"
    config = DenseConfig(EncoderConfig(dtype="bfloat16"))
    if not (directory / "index.json").exists():
        with progress("encoding", len(corpus)) as advance:
            build_dense(corpus, directory, config, up_to(advance), shard=2000)
    dense = DenseIndex.load(directory)
    if len(dense) != len(corpus):
        raise UserError(f"index {directory}: of another corpus; delete it and start again")
    yield "Dense (all-MiniLM-L6-v2)", dense
    hybrid = FusedRetriever([bm25, dense])
    yield "Hybrid (RRF of BM25 and dense)", hybrid
    if reranker:
        yield f"Hybrid, {DEPTH} reranked", RerankedRetriever(hybrid, reranker, depth=DEPTH)


def bench(data: Path, work: Path, reranker: str | None) -> dict[str, Any]:
    """The record of results/retrievers.json, its table printed. Raises UserError for missing or malformed files."""
    scorer = CrossEncoderReranker(reranker, dtype="bfloat16") if reranker else None
    corpus = list(read_corpus(data / "corpus.jsonl"))
    sets = {name: load_questions(data / file) for name, file in DATASETS.items()}
    golds = {name: gold_passages(questions, corpus) for name, questions in sets.items()}
    sentences = {
        id: texts for name in _WITH_SENTENCES for id, texts in gold_sentences(data / DATASETS[name]).items()
    }
    evals = []
    for label, retriever in retrievers(corpus, work, scorer):
        retriever.search(["warm up"], 1)
        for name, questions in sets.items():
            run = evaluate(retriever, questions, golds[name], sentences, name)
            evals.append(run.model_copy(update={"retriever": label}))
    console.print(retrieval_table(evals).rich())
    return {
        "passages": len(corpus),
        "reranker": reranker,
        "gold": {
            name: {"passages": sum(len(g.found) + g.missing for g in some), "missing": sum(g.missing for g in some)}
            for name, some in golds.items()
        },
        "evals": [run.model_dump() | {"queries_per_second": run.queries_per_second} for run in evals],
        "machine": machine(),
        "code_version": code_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Recall and speed of the retrievers on real questions.")
    parser.add_argument("--data", type=Path, required=True, help="directory of corpus.jsonl and the question files")
    parser.add_argument("--output", type=Path, default=Path("results/retrievers.json"))
    parser.add_argument("--work", type=Path, default=Path("runs/retrievers"), help="where the vectors are kept")
    parser.add_argument("--reranker", help="cross-encoder: directory or hub name; no such row if not given")
    options = parser.parse_args()
    try:
        results = bench(options.data, options.work, options.reranker)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
