"""The mini world's models by name, each trained when it is first asked for and kept in the lab's folder."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Literal, get_args

from rag_train.data_synth.deeprag.examples import PairVariant, chain_record
from rag_train.data_synth.deeprag.search import Node, SearchResult
from rag_train.eval.demo.run import train_stage
from rag_train.eval.demo.stages import search
from rag_train.eval.miniworld import students
from rag_train.eval.miniworld.engines import Engines
from rag_train.eval.miniworld.lab import PASSAGES, Lab
from rag_train.eval.miniworld.lessons import lessons
from rag_train.eval.miniworld.students import Student
from rag_train.eval.real.examples import equal_shares
from rag_train.files import read_records, write_records, write_text
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.miniworld.pretrain import pretrained
from rag_train.miniworld.vocabulary import with_words
from rag_train.progress import console
from rag_train.schema import SFTRecord
from rag_train.strategies.baselines import selfrag
from rag_train.training.result import RESULT

Taught = Literal["taught", "student"]
"""The pretrained model after the lessons: equal shares of the examples of all methods, large or small ones. The
small shares leave room for a teacher's data to improve the student."""

Stage = Literal["stage1", "stage1-most", "stage1-random", "stage2", "stage2-all-nodes", "stage2-sentence-wise"]
"""DeepRAG's stages, with the variants of the paper's Tables 4 (which trajectory is imitated) and 5 (which pairs
calibrate)."""

Chain = Literal["cot", "cot-retrieve"]
"""The paper's CoT* and CoT-Retrieve*: trained as Stage I is, on its trajectories as chains of thought, alone or
after the passages found for the question."""

Model = Literal[Taught, Stage, Chain, Student]
"""Names of the models. The `Chain`s and the `Stage`s start from ``taught``, Stage II from ``stage1``. The
`Student`s are fine-tuned on a teacher's examples."""

TOKENS = "tokens.json"
"""File in the lab's folder: the tokens of each method's examples, for ``taught`` and ``student``."""

PAIRS: dict[str, PairVariant] = {"all-nodes": "all_nodes", "sentence-wise": "sentence_wise"}
"""Pairs of a variant of Stage II."""


def pretrained_model(lab: Lab) -> Path:
    """Return the checkpoint directory of the pretrained model, which is trained if the demo has not trained it."""
    base, _ = pretrained(lab.world, lab.pretraining, Path("runs/demo/base"))
    return base


async def checkpoint(lab: Lab, name: str) -> Path:
    """Return the checkpoint directory of a `Model`, training the model if there is no checkpoint yet."""
    return (await checkpoints(lab, [name]))[name]


async def checkpoints(lab: Lab, names: Iterable[str]) -> dict[str, Path]:
    """Return the checkpoint directories of `Model`s. Those that are not there yet, and what they need, are trained.

    The data of all models that need the same engine are made before any of them is trained, so that it starts once.
    """
    names = list(names)
    missing = sorted(dict.fromkeys(_missing(lab, names)), key=_generation)
    for _, generation in groupby(missing, key=_generation):
        group = list(generation)
        async with Engines(lab.serve) as engines:
            for name in group:
                await _make_data(lab, name, engines)
        for name in group:
            console.print(f"[bold]{name}[/bold] (seed {lab.seed})")
            await asyncio.to_thread(_train, lab, name)
    return {name: lab.folder / name for name in names}


def _needs(name: str) -> tuple[str, ...]:
    """Return the models that must be there before a model is trained, first the one from which it starts."""
    if name in get_args(Taught):
        return ()
    if name in get_args(Student):
        return ("taught",) if name == "examiner" else ("student", "taught")
    return ("stage1",) if name.startswith("stage2") else ("taught",)


def _missing(lab: Lab, names: Iterable[str]) -> Iterator[str]:
    """Yield the models that are still to be trained, each after those that it needs."""
    for name in names:
        if not (lab.folder / name / RESULT).is_file():
            yield from _missing(lab, _needs(name))
            yield name


def _generation(name: str) -> int:
    """Return the number of models in the longest chain of those that a model needs."""
    return max((1 + _generation(other) for other in _needs(name)), default=0)


async def _make_data(lab: Lab, name: str, engines: Engines) -> None:
    """Write a model's training data, and extend the vocabulary of the model that it starts from if necessary."""
    data = lab.folder / f"{name}.jsonl"
    if name in get_args(Taught):
        await _write_lessons(lab)
    elif name in get_args(Student):
        records = await students.examples(lab, name, lab.folder / "taught", engines)
        write_records(data, records)
        texts = (record.prompt + record.completion for record in records)
        with_words(lab.folder / _needs(name)[0], texts, lab.folder / f"{name}-extended")
    elif name in get_args(Chain):
        write_records(data, await _chains(lab, name, engines))
    else:
        await _search(lab, name, engines)


def _train(lab: Lab, name: str) -> None:
    """Train a model on its data."""
    demo, kind = lab.settings.demo, "dpo" if name.startswith("stage2") else "sft"
    if name in get_args(Taught):
        start, settings = lab.folder / "extended", demo.cold_start
    elif name in get_args(Student):
        start, settings = lab.folder / f"{name}-extended", lab.settings.students
    else:
        start, settings = lab.folder / _needs(name)[0], demo.stage2 if kind == "dpo" else demo.stage1
    if name == "stage2-sentence-wise":  # its pairs prefer no decision
        settings = replace(settings, balance=False)
    train_stage(kind, settings, start, lab.folder / f"{name}.jsonl", lab.folder / name, lab.seed)
    if name in get_args(Student):
        shutil.rmtree(start)


async def _search(lab: Lab, name: str, engines: Engines) -> Path:
    """Return the training data of one of DeepRAG's stages, searching for it if there is none yet."""
    output, model = lab.folder / f"{name}.jsonl", lab.folder / _needs(name)[0]
    if output.exists():
        return output
    stage, _, variant = name.partition("-")
    settings = lab.settings.demo.search
    return await search(
        "sft" if stage == "stage1" else "pairs",
        model,
        getattr(lab.training, stage),
        output,
        lab.seed,
        await engines.of(model),
        lab.retriever,
        lab.index.corpus_sha256,
        search=replace(settings, variant=variant) if variant in ("most", "random") else settings,
        pairs=PAIRS.get(variant, "optimal"),
    )


async def _chains(lab: Lab, name: str, engines: Engines) -> list[SFTRecord]:
    """Return Stage I's trajectories as chains of thought, for ``cot-retrieve`` after the question's passages."""
    asked = {question.id: question for question in lab.training.stage1}
    chains: list[SFTRecord | None] = []
    for record in read_records(await _search(lab, "stage1", engines), SFTRecord):
        question = asked[record.id]
        kept = SearchResult(Node(), Node(tuple(record.steps), answer=record.answer), [], record.source)
        found = await lab.retriever.search(question.question, PASSAGES) if name == "cot-retrieve" else []
        chains.append(chain_record(question, kept, found, instructions=False))
    return [chain for chain in chains if chain]


async def _write_lessons(lab: Lab) -> None:
    """Write the lessons of ``taught`` and ``student``, and the pretrained model with all of their words."""
    if (lab.folder / TOKENS).is_file():
        return
    extended, counts = lab.folder / "extended", {}
    base = pretrained_model(lab)
    examples = await lessons(lab, base)
    texts = (record.prompt + record.completion for records in examples.values() for record in records)
    with_words(base, texts, extended, selfrag.TOKENS)
    tokenizer = load_tokenizer(str(extended))
    for name, tokens in (("taught", lab.settings.tokens), ("student", lab.settings.few)):
        drawn, counts[name] = equal_shares(examples, tokenizer, tokens, lab.seed)
        write_records(lab.folder / f"{name}.jsonl", drawn)
    write_text(lab.folder / TOKENS, json.dumps(counts))
