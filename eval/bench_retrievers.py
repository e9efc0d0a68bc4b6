"""Recall and speed of the retrievers on real questions, as the README's table has them.

    python -m eval.bench_retrievers --data DIR

DIR holds corpus.jsonl and the released files of `DATASETS`. Every retriever indexes the same corpus and is asked
the same questions in this process; indexing is not timed. Writes results/retrievers.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eval.datasets import load_questions
from eval.retrieval import evaluate, gold_passages, gold_sentences, retrieval_table
from rag_train.errors import UserError
from rag_train.progress import console
from rag_train.provenance import code_version, machine
from rag_train.retrieval.base import Retriever
from rag_train.retrieval.bm25 import BM25Index
from rag_train.retrieval.corpus import read_corpus
from rag_train.schema import Passage

DATASETS = {
    "HotpotQA": ["hotpotqa/train_100.json", "hotpotqa/dev_hard.json"],
    "2WikiMultihopQA": ["2wikimultihopqa/train_sample.json", "2wikimultihopqa/dev.json"],
    "MuSiQue": ["musique/train_100.jsonl", "musique/dev.jsonl"],
    "PopQA": ["popqa/with_passages.json"],
}
_WITH_SENTENCES = ("HotpotQA", "2WikiMultihopQA")

RETRIEVERS: dict[str, Callable[[list[Passage]], Retriever]] = {
    "BM25": BM25Index.build,
}
"""Each row of the table: from the corpus to a retriever."""


def bench(data: Path) -> dict[str, Any]:
    """The record of results/retrievers.json, its table printed. Raises UserError for missing or malformed files."""
    corpus = list(read_corpus(data / "corpus.jsonl"))
    sets = {name: [q for file in files for q in load_questions(data / file)] for name, files in DATASETS.items()}
    golds = {name: gold_passages(questions, corpus) for name, questions in sets.items()}
    sentences: dict[str, list[str]] = {}
    for name in _WITH_SENTENCES:
        for file in DATASETS[name]:
            sentences |= gold_sentences(data / file)
    evals = []
    for label, build in RETRIEVERS.items():
        with console.status(f"indexing for {label}"):
            retriever = build(corpus)
        retriever.search(["warm up"], 1)
        for name, questions in sets.items():
            run = evaluate(retriever, questions, golds[name], sentences, name)
            evals.append(run.model_copy(update={"retriever": label}))
    console.print(retrieval_table(evals).rich())
    return {
        "passages": len(corpus),
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
    options = parser.parse_args()
    try:
        results = bench(options.data)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
