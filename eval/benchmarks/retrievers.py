"""Recall and speed of every retriever on real questions (make retrievers DATA=DIR).

DIR holds corpus.jsonl and released question files of HotpotQA, 2WikiMultihopQA, MuSiQue and PopQA. Every retriever
indexes the same corpus and gets the same questions in this process; indexing is not timed. A reranker adds a row;
`rag_train.eval.benchmarks.train_reranker` trains one on the questions' training files. Writes retrievers.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.eval.benchmarks.common import benchmark_parser, exit_on_user_error
from rag_train.eval.metrics.retrieval import (
    evaluate_retriever,
    gold_passages,
    gold_sentences,
    retrieval_table,
)
from rag_train.progress import console, progress, up_to
from rag_train.provenance import save_result
from rag_train.questions.load import load_questions
from rag_train.retrieval.base import Retriever
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.fusion import FusedRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.retrieval.index.dense import DenseConfig, DenseIndex, build_dense
from rag_train.retrieval.index.encoder import EncoderConfig
from rag_train.retrieval.index.lucene import LuceneIndex
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
    """Yield the name and retriever of each row; each retriever is built when it is needed."""
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
        raise UserError(f"index {directory}: was built from a different corpus; delete it and start again")
    yield "Dense (all-MiniLM-L6-v2)", dense
    hybrid = FusedRetriever([bm25, dense])
    yield "Hybrid (RRF of BM25 and dense)", hybrid
    if reranker:
        yield f"Hybrid, {DEPTH} reranked", RerankedRetriever(hybrid, reranker, depth=DEPTH)


def bench(data: Path, work: Path, reranker: str | None) -> dict[str, Any]:
    """Measure every retriever, print the table, and return the results.

    Raises UserError for missing or malformed files.
    """
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
            run = evaluate_retriever(retriever, questions, golds[name], sentences, name)
            evals.append(run.model_copy(update={"retriever": label}))
    console.print(retrieval_table(evals))
    return {
        "passages": len(corpus),
        "reranker": reranker,
        "gold": {
            name: {"passages": sum(len(g.found) + g.missing for g in gold), "missing": sum(g.missing for g in gold)}
            for name, gold in golds.items()
        },
        "evals": [run.model_dump() | {"queries_per_second": run.queries_per_second} for run in evals],
    }


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory of corpus.jsonl and the question files")
    parser.add_argument("--work", type=Path, default=Path("runs/retrievers"), help="directory of the dense index")
    parser.add_argument("--reranker", help="cross-encoder: directory or Hub name (default: no reranker)")
    options = parser.parse_args()
    with exit_on_user_error():
        result = bench(options.data, options.work, options.reranker)
    save_result(options.output / "retrievers.json", result)


if __name__ == "__main__":
    main()
