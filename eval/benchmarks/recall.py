"""Recall of retrievers on questions with gold passages (make bench NAME=recall).

Every retriever searches the same questions over the same corpus. Recall, MRR and success (a passage has an answer)
are means over questions; recall and MRR over those whose gold passages are all in the corpus. Questions that match
--apart are in the row of their file and in one of their own. Writes recall.json and recall.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from rag_train.errors import UserError
from rag_train.eval.benchmarks.harness import benchmark_parser, exit_on_user_error, save, timed
from rag_train.eval.metrics.measures import success, words

if TYPE_CHECKING:
    from rag_train.retrieval.base import Retriever
    from rag_train.schema import Passage, Question

CUTOFFS = (2, 5, 10)
Gold = list[set[str]]
"""For each gold passage of a question, the ids of the corpus passages that count as it; empty if there is none."""


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="passages of all indexes")
    parser.add_argument("--questions", nargs="+", required=True, help="question files with gold passages")
    parser.add_argument("--index", nargs="+", required=True, help="indexes, as `rag-train eval --index` takes them")
    parser.add_argument("--apart", type=re.compile, metavar="REGEX", help="such as '\\b\\w\\b'")
    options = parser.parse_args()

    from rag_train.questions.load import load_questions
    from rag_train.retrieval.corpus import read_corpus
    from rag_train.retrieval.open import open_retriever
    from rag_train.table import NOTHING, Table

    found: dict[str, dict[str, float]] = {}
    with exit_on_user_error():
        corpus = list(read_corpus(options.corpus))
        sets = {file: load_questions(file) for file in options.questions}
        if options.apart:
            sets |= {f"{file}, {options.apart.pattern}": matching(sets[file], options.apart) for file in sets}
        golds = {file: gold_passages(questions, corpus) for file, questions in sets.items()}
        for place in options.index:
            retriever = open_retriever(place)
            retriever.search(["warm up"], 1)
            for file, questions in sets.items():
                found[f"{place}, {file}"] = evaluate(retriever, questions, golds[file])
    names = ["judged", *(f"recall@{k}" for k in CUTOFFS), "mrr", "success@10", "queries a second"]
    table = Table(
        title="Recall",
        caption="The queries are the questions. Recall, MRR and success in percent; judged: questions whose gold "
        "passages are all in the corpus.",
        columns=["Retriever, questions", *names],
        rows=[
            [name, *(NOTHING if value is None else f"{value:,.1f}" for value in map(measures.get, names))]
            for name, measures in found.items()
        ],
    )
    save(options.output, "recall", {"passages": len(corpus), "measures": found}, table)


def matching(questions: Sequence[Question], pattern: re.Pattern[str]) -> list[Question]:
    """Return the questions in whose text the pattern is found. Raises UserError if there are none."""
    found = [question for question in questions if pattern.search(question.question)]
    if not found:
        raise UserError(f"--apart {pattern.pattern}: no question matches; correct it or leave it out")
    return found


def gold_passages(questions: Sequence[Question], corpus: Iterable[Passage]) -> list[Gold]:
    """Find the gold passages of each question in the corpus.

    Releases write the same passage differently, so two passages are the same if title and text have the same
    `words`. A gold passage without text is a whole page, as in KILT: every passage with its title counts.
    """
    ids: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    pages = {words(p.title) for question in questions for p in question.gold_passages if not p.text}
    for passage in corpus:
        ids[words(passage.title), words(passage.text)].add(passage.id)
        if words(passage.title) in pages:
            ids[words(passage.title), ""].add(passage.id)
    keys = [dict.fromkeys((words(p.title), words(p.text)) for p in q.gold_passages) for q in questions]
    return [[ids.get(key, set()) for key in own] for own in keys]


def evaluate(retriever: Retriever, questions: Sequence[Question], golds: Sequence[Gold]) -> dict[str, float]:
    """Search with each question as the query, and return the measures in percent.

    Raises UserError without questions; errors of the retriever are passed on.
    """
    if not questions:
        raise UserError(f"no questions to evaluate the retriever {retriever.name}; give at least one")
    queries = [question.question for question in questions]
    results, seconds = timed(lambda: retriever.search(queries, max(CUTOFFS)))
    judged = [(gold, found) for gold, found in zip(golds, results, strict=True) if gold and all(gold)]
    measures = {"judged": float(len(judged)), "queries a second": len(questions) / seconds}
    answered = (success(question, found[:10]) for question, found in zip(questions, results, strict=True))
    measures["success@10"] = 100 * fmean(answered)
    if judged:
        measures["mrr"] = 100 * fmean(reciprocal_rank(*pair) for pair in judged)
        measures |= {f"recall@{k}": 100 * fmean(recall(*pair, k) for pair in judged) for k in CUTOFFS}
    return measures


def recall(gold: Gold, found: Sequence[Passage], k: int) -> float:
    """Return the share of the gold passages among the first ``k``; copies of a gold passage count once."""
    ids = {passage.id for passage in found[:k]}
    return fmean(bool(copies & ids) for copies in gold)


def reciprocal_rank(gold: Gold, found: Sequence[Passage]) -> float:
    """Return one over the rank of the first gold passage; 0 if none was found."""
    return next((1 / rank for rank, p in enumerate(found, 1) if any(p.id in copies for copies in gold)), 0.0)


if __name__ == "__main__":
    main()
