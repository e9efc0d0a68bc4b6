"""Where the comparison takes place: the atlas, or a folder of released question files and a corpus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from rag_train.atlas.facts import Split, load_atlas
from rag_train.errors import UserError
from rag_train.eval.demo.world import one_answer
from rag_train.llm.base import LLM
from rag_train.questions.load import load_questions
from rag_train.retrieval.corpus import read_corpus
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Question

TRAIN = ("musique/train_100.jsonl", "2wikimultihopqa/train_sample.json")
"""Question files with annotated hops, for training examples."""
ASKED = {
    "2WikiMultihopQA": "2wikimultihopqa/dev.json",
    "MuSiQue": "musique/dev.jsonl",
    "HotpotQA": "hotpotqa/dev_hard.json",
    "PopQA": "popqa/with_passages.json",
}
"""Question files to answer, by the name of their dataset."""

Annotate = Callable[[LLM, Sequence[Question], Path], Awaitable[list[Question]]]


@dataclass
class RealWorld:
    """What the comparison needs.

    Attributes:
        index: retriever of the corpus.
        train: training questions with annotated hops, in random order.
        asked: questions to answer, by set.
        annotate: returns questions with ``known`` of each hop, where it can be measured of the model behind an
            engine; the measurement is written to the file.
    """

    index: BM25Index
    train: list[Question]
    asked: dict[str, list[Question]]
    annotate: Annotate


def open_atlas(split: Split, seed: int) -> RealWorld:
    """Return the atlas with its questions of several hops and one answer."""
    from rag_train.atlas.knowledge import facts_of, measure, with_knowledge
    from rag_train.atlas.passages import corpus
    from rag_train.atlas.questions import questions

    atlas = load_atlas()

    async def annotate(llm: LLM, asked: Sequence[Question], output: Path) -> list[Question]:
        facts = await measure(atlas, facts_of(atlas, asked), llm, output)
        return with_knowledge(asked, {fact.subquery: fact.known for fact in facts})

    def several(split: Split) -> list[Question]:
        return one_answer(questions(atlas, split, seed))

    return RealWorld(BM25Index.build(corpus(atlas)), several("train"), {"atlas": several(split)}, annotate)


def open_files(folder: Path, seed: int) -> RealWorld:
    """Return released files (`TRAIN`, `ASKED`) and the passages of ``corpus.jsonl``, all in ``folder``.

    Raises UserError if a file is missing or malformed.
    """
    for name in (*TRAIN, *ASKED.values(), "corpus.jsonl"):
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: no such file; --data needs {name}")

    async def annotate(llm: LLM, asked: Sequence[Question], output: Path) -> list[Question]:
        return list(asked)  # nobody measured what the model knows of these facts

    train = [question for name in TRAIN for question in load_questions(folder / name) if question.decomposition]
    asked = {name: load_questions(folder / file) for name, file in ASKED.items()}
    for number, questions in enumerate((train, *asked.values())):
        Random(f"{seed}-{number}").shuffle(questions)
    return RealWorld(BM25Index.build(read_corpus(folder / "corpus.jsonl")), train, asked, annotate)
