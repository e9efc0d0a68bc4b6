"""What a mini model is taught to run all systems and baselines: gold examples of every module, and its own text
beside them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

from data_synth import baselines, hanrag
from data_synth.factories import FACTORIES
from data_synth.records import says, task_record
from rag_train.formats import hanrag as hanrag_format
from rag_train.formats import planrag as planrag_format
from rag_train.miniworld.text import END, TextSource
from rag_train.miniworld.world import World
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import GoldStep, Passage, Question, Segment, SFTRecord

JSON = re.compile(r'\{|\[[\["{\]]')
"""How it begins; Self-RAG's tokens are in brackets, too."""


async def lessons(
    world: World,
    retriever: AsyncRetriever,
    *,
    questions: int,
    compounds: int,
    readings: int,
    repeats: int,
    passages: int = 3,
) -> list[SFTRecord]:
    """Examples from ``questions`` training questions of several hops, a third as many of one, ``compounds``
    compound ones and ``readings`` single facts, and ``repeats`` documents of the kind that the model was trained
    on, lest it forget."""
    training = world.questions("train")
    several, single = ([q for q in training if (q.hops == 1) is one] for one in (False, True))
    asked = several[:questions] + single[: questions // 3]
    out: list[SFTRecord] = []
    for question in asked:
        found = await _found(retriever, question, passages)
        for factory in (*FACTORIES.values(), baselines):
            out += factory.gold_records(question, found, instructions=False)
    for question in world.compounds("train", compounds):
        found = await _found(retriever, question, passages)
        for factory in (hanrag, baselines):
            out += factory.gold_records(question, found, instructions=False)
    rng = random.Random(world.config.seed)
    facts = [fact for fact in world.facts if world.split.get(fact[0]) == "train"]
    for subject, relation in rng.sample(facts, min(readings, len(facts))):
        out += await _readings(retriever, world.follow(subject, (relation,))[0], passages)
    out = [spaced(record) for record in out]
    source = TextSource(world, world.config.seed + 1)
    source.progress = 1.0
    for i in range(repeats):
        out.append(_repeat(source.document(), i))
    return out


async def _readings(retriever: AsyncRetriever, step: GoldStep, passages: int) -> list[SFTRecord]:
    """The generators' answers to one subquery. These systems answer in short, where the model's own text has whole
    sentences: reading for them is what takes most examples to learn."""
    found = await retriever.search(step.subquery, passages)
    relevant = [passage for passage in found if says([passage], step.short)]
    if not relevant:
        return []
    response = planrag_format.Response(Response=step.short)
    examples = [
        (planrag_format.ANSWER, planrag_format.answer_fields(step.subquery, found, []), response),
        (hanrag_format.ANSWER, hanrag_format.answer_fields(step.subquery, relevant), step.short),
    ]
    return [
        task_record(task, fields, answer, id=step.subquery, source="gold", instructions=False)
        for task, fields, answer in examples
    ]


async def _found(retriever: AsyncRetriever, question: Question, passages: int) -> dict[str, list[Passage]]:
    queries = [question.question, *(step.subquery for step in question.decomposition)]
    return dict(zip(queries, await retriever.search_all(queries, passages), strict=True))


def spaced(record: SFTRecord) -> SFTRecord:
    """JSON strings begin with a space: in the model's vocabulary, a name is one token only after one."""
    *lead, answer = record.segments
    if not JSON.match(answer.text):
        return record
    text = json.dumps(_with_space(json.loads(answer.text)), separators=(",", ":"), ensure_ascii=False) + "\n"
    segments = [*lead, Segment(text=text, trained=True)]
    return record.model_copy(update={"segments": segments, "completion": "".join(s.text for s in segments)})


def _with_space(value: Any) -> Any:
    match value:
        case str():
            return f" {value}" if value else value
        case list():
            return [_with_space(item) for item in value]
        case dict():
            return {key: _with_space(item) for key, item in value.items()}
    return value


def _repeat(document: Sequence[Segment], number: int) -> SFTRecord:
    segments = [Segment(text=s.text.removesuffix(END), trained=s.trained) for s in document]
    segments = [segment for segment in segments if segment.text]
    return SFTRecord(
        id=f"repeat-{number}",
        prompt="",
        completion="".join(segment.text for segment in segments),
        segments=segments,
        source="gold",
    )
