"""A positive control without a language model: published figures of BM25, measured again with our code.

Each question of MuSiQue's dev split comes with 20 passages of its own, which BM25 ranks by the question. DIR holds
musique/dev.jsonl, whole or a part of it. Writes positive_control.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rag_train.eval.benchmarks.common import benchmark_parser, exit_on_user_error
from rag_train.eval.metrics.intervals import share
from rag_train.progress import console
from rag_train.provenance import save_result
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.rows import read_json_lines
from rag_train.schema import Passage

PUBLISHED = {"recall@10": 0.6911, "hit@10": 0.9595}
"""BM25 on all 2,417 questions (Wilson and Carter 2025, doi 10.69987/AIMLR.2025.60302)."""


def measured(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return, for each question, the share of its supporting passages among the first ten, and whether any is."""
    values: dict[str, list[float]] = {name: [] for name in PUBLISHED}
    for row in rows:
        paragraphs = row["paragraphs"]
        passages = [Passage(id=str(p["idx"]), title=p["title"], text=p["paragraph_text"]) for p in paragraphs]
        gold = {str(p["idx"]) for p in paragraphs if p["is_supporting"]}
        [ranked] = BM25Index.build(passages).search([row["question"]], 10)
        found = gold & {passage.id for passage in ranked}
        values["recall@10"].append(len(found) / len(gold))
        values["hit@10"].append(float(bool(found)))
    return values


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of released question files")
    options = parser.parse_args()
    with exit_on_user_error():
        values = measured(row for _, row in read_json_lines(options.data / "musique/dev.jsonl"))
    measures = {name: share(of).model_dump() for name, of in values.items()}
    result = {"dataset": "MuSiQue, dev", "questions": len(values["recall@10"])}
    save_result(options.output / "positive_control.json", result | {"published": PUBLISHED, "measures": measures})
    console.print(measures)


if __name__ == "__main__":
    main()
