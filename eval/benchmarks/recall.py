"""Recall of retrievers on questions with gold passages (make bench NAME=recall).

Every retriever searches the same questions over the same corpus. Writes recall.json and recall.md.
"""

from __future__ import annotations

from pathlib import Path

from rag_train.eval.benchmarks.harness import benchmark_parser, exit_on_user_error, save


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="passages of all indexes")
    parser.add_argument("--questions", nargs="+", required=True, help="question files with gold passages")
    parser.add_argument("--index", nargs="+", required=True, help="indexes, as `rag-train eval --index` takes them")
    options = parser.parse_args()

    from rag_train.eval.metrics.retrieval import evaluate_retriever, gold_passages, retrieval_table
    from rag_train.questions.load import load_questions
    from rag_train.retrieval.corpus import read_corpus
    from rag_train.retrieval.open import open_retriever

    with exit_on_user_error():
        corpus, evals = list(read_corpus(options.corpus)), []
        sets = {file: load_questions(file) for file in options.questions}
        golds = {file: gold_passages(questions, corpus) for file, questions in sets.items()}
        for place in options.index:
            retriever = open_retriever(place)
            retriever.search(["warm up"], 1)
            for file, questions in sets.items():
                found = evaluate_retriever(retriever, questions, golds[file], dataset=Path(file).stem)
                evals.append(found.model_copy(update={"retriever": place}))
    result = [run.model_dump() | {"queries_per_second": run.queries_per_second} for run in evals]
    save(options.output, "recall", {"passages": len(corpus), "evals": result}, retrieval_table(evals))


if __name__ == "__main__":
    main()
