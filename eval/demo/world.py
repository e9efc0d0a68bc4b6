"""The worlds in which the demo can take place: a corpus, questions, a starting model, and what the model knows."""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rag_train.data_synth.deeprag.cold_start import ColdStartConfig
from rag_train.eval.demo.recipe import AtlasRecipe, DemoRecipe, MiniWorldRecipe
from rag_train.eval.demo.results import Curve, Series
from rag_train.formats import deeprag, reader
from rag_train.jobs.files import new_directory
from rag_train.llm.base import LLM
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Question
from rag_train.worlds.atlas.facts import share
from rag_train.worlds.mini.pretrain import RECORD, pretrained
from rag_train.worlds.mini.vocabulary import with_words
from rag_train.worlds.mini.world import World, known_subqueries, write_world

PARTS = (0.5, 0.75, 1.0)
"""Upper bounds of the shares of the atlas' countries for the cold start, Stage I and Stage II."""
MARKERS = "\n".join(
    [
        deeprag.CONTEXT,
        deeprag.QUESTION,
        deeprag.FOLLOW_UP,
        deeprag.SEARCH,
        deeprag.INTERMEDIATE,
        deeprag.FINAL,
        reader.THOUGHT,
    ]
)
"""How the lines of DeepRAG's and the reader's transcripts begin. The mini model's pretraining has none of them."""
PLAIN = "{{ messages[-1]['content'] }}"
"""Chat template that leaves a question as it stands, as in the mini model's text: no marker, no worked example."""
COMPARISONS_TAUGHT = 1600
"""The mini world's questions for training that compare two entities, by split: about every fourth."""
Known = dict[str, bool]
"""Whether the starting model knows the answer, by subquery. Subqueries on which it is uncertain are left out."""


@dataclass
class DemoWorld:
    """What the demo needs of a world.

    Attributes:
        index: retriever of the corpus.
        training: training questions by the section of the recipe that they are for.
        asked: questions to answer.
        model: directory of the starting model.
        known: measures or looks up what the model behind an engine knows of the facts behind questions, by
            subquery, with None for a fact on which its answers disagree; a measurement is written to the file.
        engine: settings of the engine.
        instructed: strategies whose prompts begin with the method's instruction.
        chat_template: how the starting model is asked what it knows, if not as its tokenizer says.
        cold_start: settings of the cold-start examples.
        curves: how the starting model was trained, if the demo trained it.
    """

    index: BM25Index
    training: dict[str, list[Question]]
    asked: list[Question]
    model: Path
    known: Callable[[LLM, Sequence[Question], Path], Awaitable[Mapping[str, bool | None]]]
    engine: dict[str, Any] = field(default_factory=dict)
    instructed: tuple[str, ...] = ()
    chat_template: str | None = None
    cold_start: ColdStartConfig = field(default_factory=ColdStartConfig)
    curves: list[Curve] = field(default_factory=list)


def open_world(recipe: DemoRecipe, seed: int, folder: Path, work: Path, scratch: bool) -> DemoWorld:
    """Set up the recipe's world.

    ``folder`` is for this seed's files, ``work`` for models that several runs share.
    """
    if recipe.miniworld is not None:
        return _open_miniworld(recipe.miniworld, recipe, seed, folder, work, scratch)
    assert recipe.atlas is not None
    return _open_atlas(recipe.atlas, recipe, seed, work)


def _open_miniworld(
    settings: MiniWorldRecipe, recipe: DemoRecipe, seed: int, folder: Path, work: Path, scratch: bool
) -> DemoWorld:
    world = World(replace(settings.world, seed=seed))
    write_world(world, folder / "world")
    base, new = pretrained(world, replace(settings.pretrain, seed=seed), work / "base", scratch=scratch)
    losses = json.loads((base / RECORD).read_text())["losses"]
    curve = Curve(
        title="Mini model, from scratch",
        x_label="step",
        y_label="loss",
        series=[Series(name="loss", x=[float(x) for x, _ in losses], y=[float(y) for _, y in losses])],
    )

    async def known(_: LLM, __: Sequence[Question], ___: Path) -> Mapping[str, bool | None]:
        return known_subqueries(world)

    extended = folder / "extended"
    if new or not extended.exists():
        with new_directory(extended, replace=True) as unfinished:
            with_words(base, [MARKERS], unfinished)
    return DemoWorld(
        index=BM25Index.build(world.corpus()),
        training=training_questions(world, recipe),
        asked=multi_hop(world.questions(recipe.split))[: recipe.test_questions],
        model=extended,
        known=known,
        engine={"dtype": "float32", "kv_cache_memory_bytes": 2**29},
        chat_template=PLAIN,
        curves=[curve],
    )


def _open_atlas(settings: AtlasRecipe, recipe: DemoRecipe, seed: int, work: Path) -> DemoWorld:
    from rag_train.worlds.atlas.facts import load_atlas
    from rag_train.worlds.atlas.knowledge import facts_of, measure
    from rag_train.worlds.atlas.passages import corpus
    from rag_train.worlds.atlas.questions import home, questions
    from rag_train.worlds.packaged import checkpoint_of

    atlas = load_atlas()
    # All seeds of the lessons ask the same questions: what differs is the training.
    asked = one_answer(questions(atlas, recipe.split, 0 if recipe.lessons else seed))[: recipe.test_questions]
    training: dict[str, list[Question]] = {}
    if recipe.lessons:
        # Without questions of one hop, a classifier of questions would learn that each needs several retrievals.
        lessons = [question for question in questions(atlas, "train", seed) if question.type != "compound"]
        training["lessons"] = lessons[: recipe.lessons.questions]
    else:
        cold_start, stage1, stage2 = recipe.stages
        train = one_answer(questions(atlas, "train", seed))
        homes = {entity.name: home(atlas, entity).id for entity in atlas.entities.values()}
        parts = [[q for q in train if part(q, homes) == number] for number in range(len(PARTS))]
        training["cold_start"] = as_mixed(parts[0], train, cold_start.questions)
        # Comparisons have two answers to guess from. A search keeps every trajectory that ends in the right answer,
        # so that many of theirs would be wrong on the way.
        first, second = ([q for q in own if q.type == "chain"] for own in parts[1:])
        training |= {"stage1": first[: stage1.questions], "stage2": second[: stage2.questions]}

    async def known(llm: LLM, about: Sequence[Question], output: Path) -> Mapping[str, bool | None]:
        measured = await measure(atlas, facts_of(atlas, about), llm, output)
        return {fact.subquery: fact.known for fact in measured}

    return DemoWorld(
        index=BM25Index.build(corpus(atlas)),
        training=training,
        asked=asked,
        model=checkpoint_of(settings.model, work),
        known=known,
        engine={"max_model_len": recipe.lessons.max_context if recipe.lessons else 2048},
        instructed=("cot",),
        cold_start=ColdStartConfig(retrieve_share=settings.retrieve_share),
    )


def training_questions(world: World, recipe: DemoRecipe) -> dict[str, list[Question]]:
    """Return a mini world's training questions by stage, in the numbers of the recipe.

    Stage II asks about other films and people than Stage I. On the facts of its own questions, Stage I's decisions
    are fitted already, so that nothing would be left to correct. Both stages have few comparisons (6%); without
    them, they would forget how to answer comparisons.
    """
    cold_start, stage1, stage2 = recipe.stages
    lessons = world.questions("lessons", comparisons=COMPARISONS_TAUGHT)[: cold_start.questions]
    seen = {question.question for question in lessons}
    fresh = [question for question in multi_hop(world.questions("lessons")) if question.question not in seen]
    return {
        "cold_start": lessons,
        "stage1": multi_hop(world.questions("train"))[: stage1.questions],
        "stage2": fresh[: stage2.questions],
    }


def multi_hop(questions: Iterable[Question]) -> list[Question]:
    """Return the questions that take more than one hop."""
    return [question for question in questions if (question.hops or 0) > 1]


def part(question: Question, homes: Mapping[str, str]) -> int | None:
    """Return the part of the countries that a question is about, or None if it is about several parts.

    A model knows the facts that an earlier stage has trained on, and not those of the test questions. The cold
    start, Stage I and Stage II therefore have countries of their own (`PARTS`). ``homes``: the country of each
    entity.
    """
    parts = {bisect(PARTS, share(f"part {homes[step.entity]}")) for step in question.decomposition}
    return parts.pop() if len(parts) == 1 else None


def as_mixed(questions: Sequence[Question], like: Sequence[Question], count: int) -> list[Question]:
    """Return ``count`` questions, or all, with the share of chains that ``like`` has.

    Few comparisons are about countries of one part; without this, the cold start would hardly teach them.
    """
    linked, others = ([q for q in questions if (q.type == "chain") is wanted] for wanted in (True, False))
    share_of_chains = sum(q.type == "chain" for q in like) / len(like)
    first = round(count * share_of_chains)
    return [*linked[:first], *others[: count - first]]


def one_answer(questions: list[Question]) -> list[Question]:
    """Return the questions of several hops, without compound ones, which have several answers."""
    return [question for question in multi_hop(questions) if question.type != "compound"]
