"""Where the comparison takes place: the atlas, or a folder of released question files and a corpus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random

from rag_train.atlas.facts import Split, load_atlas
from rag_train.data_synth.leakage import HeldOutQuestions
from rag_train.errors import UserError
from rag_train.eval.demo.world import one_answer
from rag_train.llm.base import LLM
from rag_train.questions.load import load_questions
from rag_train.retrieval.corpus import read_corpus
from rag_train.schema import Passage, Question

TRAIN = ("musique/train_100.jsonl", "2wikimultihopqa/train_sample.json")
"""Question files with annotated hops, for training examples."""
ASKED = {
    "2WikiMultihopQA": "2wikimultihopqa/dev.json",
    "MuSiQue": "musique/dev.jsonl",
    "HotpotQA": "hotpotqa/dev_hard.json",
    "PopQA": "popqa/with_passages.json",
}
"""Question files to answer, by the name of their dataset."""

Measure = Callable[[LLM, Sequence[Question], Path], Awaitable[dict[str, bool | None]]]


@dataclass
class RealWorld:
    """What the comparison needs.

    Attributes:
        corpus: passages to retrieve from.
        train: training questions with annotated hops, in an order drawn by the seed.
        asked: questions to answer, by set; the same for every seed.
        measure: returns what the model behind an engine knows of the questions' facts, by subquery, with None for a
            fact on which its answers disagree; the measurement is written to the file. Empty where nothing can be
            measured.
    """

    corpus: list[Passage]
    train: list[Question]
    asked: dict[str, list[Question]]
    measure: Measure


def open_atlas(split: Split, seed: int) -> RealWorld:
    """Return the atlas. Questions to answer have several hops and one answer; training questions also one hop.

    Without questions of one hop, a classifier of questions would learn that each needs several retrievals.
    """
    from rag_train.atlas.knowledge import facts_of, measure
    from rag_train.atlas.passages import corpus
    from rag_train.atlas.questions import questions

    atlas = load_atlas()

    async def known(llm: LLM, asked: Sequence[Question], output: Path) -> dict[str, bool | None]:
        facts = await measure(atlas, facts_of(atlas, asked), llm, output)
        return {fact.subquery: fact.known for fact in facts}

    asked = one_answer(questions(atlas, split, 0))
    train = [question for question in questions(atlas, "train", seed) if question.type != "compound"]
    return RealWorld(list(corpus(atlas)), train, {"atlas": asked}, known)


def open_files(folder: Path, seed: int) -> RealWorld:
    """Return released files (`TRAIN`, `ASKED`) and the passages of ``corpus.jsonl``, all in ``folder``.

    Training questions that leak a question of ``ASKED`` by text or entity are left out.

    Raises UserError if a file is missing or malformed.
    """
    for name in (*TRAIN, *ASKED.values(), "corpus.jsonl"):
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: no such file; --data needs {name}")

    async def unmeasured(llm: LLM, asked: Sequence[Question], output: Path) -> dict[str, bool | None]:
        return {}

    asked = {name: load_questions(folder / file) for name, file in ASKED.items()}
    held_out = HeldOutQuestions(chain.from_iterable(asked.values()))
    annotated = [question for name in TRAIN for question in load_questions(folder / name) if question.decomposition]
    train = [question for question in annotated if not held_out.leak(question)]
    Random(seed).shuffle(train)
    for questions in asked.values():
        Random(0).shuffle(questions)
    return RealWorld(list(read_corpus(folder / "corpus.jsonl")), train, asked, unmeasured)
