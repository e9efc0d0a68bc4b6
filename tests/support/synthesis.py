"""Records, files and retrieved passages for the synthesis tests."""

from collections.abc import Sequence
from pathlib import Path

from rag_train.jobs.files import write_records
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import GoldStep, Passage, Question, Record, Segment, SFTRecord

HELD_OUT = Question(
    id="e",
    question="When was the director of Zazie born?",
    answers=["1932"],
    decomposition=[
        GoldStep(subquery="Who directed Zazie?", answer="Louis Malle", entity="Zazie"),
        GoldStep(subquery="When was Louis Malle born?", answer="1932", entity="Louis Malle"),
    ],
)
"""A question kept for evaluation."""


def example(id: str, question: str, answer: str = "a", **more) -> SFTRecord:
    """A training example that asks ``question``; its prompt has an instruction and a passage."""
    segments = [Segment(text="Answer:", trained=False), Segment(text=f" {answer}\n", trained=True)]
    prompt = f"Do it.\n\nQuestion: {question}\nContext: T: of Ada Lovelace\n"
    return SFTRecord(
        id=id, prompt=prompt, completion=f"Answer: {answer}\n", segments=segments, source="gold", task="t", **more
    )


def write(path: Path, records: Sequence[Record]) -> Path:
    """Write records to ``path`` and return it."""
    write_records(path, records)
    return path


def search_hops(question: Question, index: BM25Index) -> dict[str, list[Passage]]:
    """Retrieve three passages for the question, each hop's subquery and its entity; return them by query."""
    queries = [
        question.question,
        *(query for step in question.decomposition for query in (step.subquery, step.entity)),
    ]
    return dict(zip(queries, index.search(queries, 3), strict=True))
