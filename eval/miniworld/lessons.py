"""Lessons that teach a mini model to run all systems and baselines: gold examples of every module, mixed with text
of the kind that the model was pretrained on."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

from rag_train.data_synth.modules import baselines, hanrag
from rag_train.data_synth.modules.examples import retrieved, says, task_record
from rag_train.data_synth.modules.registry import FACTORIES
from rag_train.formats import hanrag as hanrag_format
from rag_train.formats import planrag as planrag_format
from rag_train.miniworld.text import END, TextSource
from rag_train.miniworld.world import World
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import GoldStep, Segment, SFTRecord

JSON = re.compile(r'\{|\[[\["{\]]')
"""The beginning of a JSON object or array. A bracket alone may begin one of Self-RAG's tokens."""


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
    """Return examples from training questions and facts, and documents of the kind used in pretraining.

    The examples come from ``questions`` multi-hop questions, a third as many single-hop questions, ``compounds``
    compound questions and ``readings`` single facts. The ``repeats`` documents keep the model from forgetting.
    """
    training = world.questions("train")
    several = [question for question in training if question.hops != 1]
    single = [question for question in training if question.hops == 1]
    asked = several[:questions] + single[: questions // 3]
    out: list[SFTRecord] = []
    for question in asked:
        found = await retrieved(retriever, question, passages, entities=True)
        for factory in (*FACTORIES.values(), baselines):
            out += factory.gold_records(question, found, instructions=False)
    for question in world.compounds("train", compounds):
        found = await retrieved(retriever, question, passages)
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
    """Return examples of the generators' answers to one subquery.

    These systems give short answers, while the model's own text has whole sentences, so reading for short answers
    takes the most examples to learn.
    """
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


def spaced(record: SFTRecord) -> SFTRecord:
    """Return the record with a space at the start of every JSON string of its answer.

    In the model's vocabulary, a name is one token only after a space.
    """
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
