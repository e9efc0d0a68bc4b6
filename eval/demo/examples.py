"""Training examples of every method from the same questions, for one model that can run them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING

from rag_train.data_synth.knowable import unknown
from rag_train.data_synth.modules import baselines
from rag_train.data_synth.modules.examples import flaw, retrieved
from rag_train.data_synth.modules.method import ModuleMethod
from rag_train.data_synth.registry import METHODS
from rag_train.eval.demo.recipe import MAX_TOKENS
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Question, SFTRecord

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


async def gold_examples(
    questions: Sequence[Question], retriever: AsyncRetriever, passages: int
) -> dict[str, list[SFTRecord]]:
    """Return the examples of the systems made of modules and of the baselines, by method.

    A baseline's method is the first part of its tasks' names. Questions without usable hops are left out, and the
    systems' targets that cannot be known from their prompts. The baselines' examples need no such check: they are
    made only where the passages or the model's own knowledge have the answer.
    """
    systems = {name: each for name, each in sorted(METHODS.items()) if issubclass(each, ModuleMethod)}
    out: dict[str, list[SFTRecord]] = {}
    for question in questions:
        if flaw(question):
            continue
        found = await retrieved(retriever, question, passages, entities=True)
        for method, system in systems.items():
            records = system.gold_records(question, found, instructions=False)
            out.setdefault(method, []).extend(record for record in records if not unknown(record))
        for record in baselines.gold_records(question, found, instructions=False):
            out.setdefault((record.task or "baseline").partition("_")[0], []).append(record)
    return out


def equal_shares(
    examples: dict[str, list[SFTRecord]], tokenizer: PreTrainedTokenizerBase, tokens: int, seed: int
) -> tuple[list[SFTRecord], dict[str, int]]:
    """Draw examples of each method until they have ``tokens`` tokens, and return them with each method's tokens.

    The tasks of a method take turns, so that all of its modules are taught. Examples that are too long to train on
    are left out.
    """
    drawn: list[SFTRecord] = []
    counts: Counter[str] = Counter()
    for method, records in sorted(examples.items()):
        for record in _in_turn(records, Random(f"{seed}-{method}")):
            if counts[method] >= tokens:
                break
            size = len(tokenizer.encode(record.prompt + record.completion))
            if size < MAX_TOKENS:  # the trainer adds the end of the text
                drawn.append(record.model_copy(update={"id": f"{method}/{record.id}"}))
                counts[method] += size
    return drawn, dict(counts)


def _in_turn(records: Iterable[SFTRecord], rng: Random) -> list[SFTRecord]:
    """Return the records in random order, such that the tasks take turns while they have records left."""
    by_task: dict[str, list[SFTRecord]] = {}
    for record in records:
        by_task.setdefault(record.task or "", []).append(record)
    for task in by_task.values():
        rng.shuffle(task)
    places = [(place, record) for task in by_task.values() for place, record in enumerate(task)]
    return [record for _, record in sorted(places, key=lambda item: item[0])]
