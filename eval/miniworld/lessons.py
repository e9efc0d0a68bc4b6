"""Lessons that teach a mini model the formats of all methods: examples of each method from the same questions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rag_train.eval.demo.stages import search
from rag_train.eval.miniworld.lab import PASSAGES, Lab
from rag_train.eval.real.examples import gold_examples
from rag_train.files import read_records
from rag_train.formats import deeprag, reader
from rag_train.schema import Segment, SFTRecord

JSON = re.compile(r'\{|\[[\["{\]]')
"""The beginning of a JSON object or array. A bracket alone may begin one of Self-RAG's tokens."""
PLAIN = "{{ messages[-1]['content'] }}"
"""Chat template that leaves a question as it stands, as in the mini model's text: no marker, no worked example."""

FORMATS = {
    (False, False): "direct",
    (False, True): "cot",
    (True, False): "rag",
    (True, True): "cot-rag",
}
"""The baseline of each of the reader's formats: whether it reads passages, and whether it reasons."""


async def lessons(lab: Lab, base: Path) -> dict[str, list[SFTRecord]]:
    """Return the examples of every method from the lab's lessons, by method; ``base`` is the pretrained checkpoint.

    Each of the reader's formats is a method of its own, because it is all that one of the baselines is taught.
    DeepRAG's examples are the transcripts of its cold start, whose answers from memory are those of ``base``.
    """
    questions = lab.lessons()
    output = lab.folder / "cold_start.jsonl"
    if not output.exists():
        async with lab.serve(base) as engine:
            engine.tokenizer.chat_template = PLAIN
            corpus, settings = lab.index.corpus_sha256, lab.settings.demo.search
            await search(
                "cold_start", base, questions, output, lab.seed, engine, lab.retriever, corpus, search=settings
            )
    examples = await gold_examples(questions, lab.retriever, PASSAGES)
    for record in examples.pop("reader"):
        reads, reasons = record.prompt.startswith(deeprag.CONTEXT), record.completion.startswith(reader.THOUGHT)
        examples.setdefault(FORMATS[reads, reasons], []).append(record)
    # The cold start also has examples of the reader, which are not a part of DeepRAG here.
    examples["deeprag"] = [record for record in read_records(output, SFTRecord) if not record.task]
    return {method: [spaced(record) for record in records] for method, records in examples.items()}


def spaced(record: SFTRecord) -> SFTRecord:
    """Return the record with a space at the start of every JSON string of its answer.

    In the model's vocabulary, a name is made of whole words only after a space.
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
