"""The mini world's models by name, each trained when it is first asked for and kept in the lab's folder."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Literal, get_args

from rag_train.data_synth.deeprag.examples import PairVariant
from rag_train.data_synth.deeprag.search import SearchConfig
from rag_train.eval.demo.stages import fine_tune, search
from rag_train.eval.miniworld import students
from rag_train.eval.miniworld.lab import Lab
from rag_train.eval.miniworld.lessons import lessons
from rag_train.eval.miniworld.students import Student
from rag_train.eval.real.examples import equal_shares
from rag_train.files import write_records, write_text
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.miniworld.pretrain import PretrainConfig, pretrained
from rag_train.miniworld.vocabulary import with_words
from rag_train.progress import console
from rag_train.strategies.baselines import selfrag
from rag_train.training.recipe import DPORecipe, SFTRecipe
from rag_train.training.result import RESULT

Stage = Literal["stage1", "stage1-most", "stage1-random", "stage2", "stage2-all-nodes", "stage2-sentence-wise"]
"""DeepRAG's stages, with the variants of the paper's Tables 4 (which trajectory is imitated) and 5 (which pairs
calibrate)."""

Model = Literal["base", "taught", "student", Stage, Student]
"""Names of the models.

- base: the pretrained model, which knows no method's format.
- taught: the base model after the lessons, equal shares of the examples of all methods.
- student: the same with small shares, so that a teacher's data can improve it.
- the `Stage`s: the model taught, trained by DeepRAG.
- the `Student`s: models fine-tuned on a teacher's examples.
"""
TOKENS = "tokens.json"
"""File in the lab's folder: the tokens of each method's examples, for ``taught`` and ``student``."""

PAIRS: dict[str, PairVariant] = {"all-nodes": "all_nodes", "sentence-wise": "sentence_wise"}
"""Pairs of a variant of Stage II."""


async def checkpoint(lab: Lab, name: str) -> Path:
    """Return the checkpoint directory of a `Model`, training the model if there is no checkpoint yet."""
    directory = lab.folder / name
    if name == "base":
        base, _ = pretrained(lab.world, PretrainConfig(seed=lab.seed), Path("runs/demo/base"))
        return base
    if (directory / RESULT).is_file():
        return directory
    console.print(f"[bold]{name}[/bold] (seed {lab.seed})")
    if name in get_args(Stage):
        await _train_deeprag(lab, name, directory)
    elif name in ("taught", "student"):
        await _imitate(lab, await _with_lessons(lab), directory)
    else:
        records = await students.examples(lab, name, teacher=await checkpoint(lab, "taught"))
        start = await checkpoint(lab, "taught" if name == "examiner" else "student")
        extended = lab.folder / f"{name}-extended"
        write_records(lab.folder / f"{name}.jsonl", records)
        with_words(start, (record.prompt + record.completion for record in records), extended)
        await _imitate(lab, extended, directory)
        shutil.rmtree(extended)
    return directory


async def _train_deeprag(lab: Lab, name: str, output: Path) -> None:
    stage, _, variant = name.partition("-")
    start = await checkpoint(lab, "taught" if stage == "stage1" else "stage1")
    data = await _search(lab, stage, variant, start)
    settings: dict[str, Any]
    if stage == "stage1":
        settings = {"stage": "sft", "lr": 3e-4, "epochs": 3, "sft": SFTRecipe(pack_tokens=512)}
    else:  # the demo's settings
        settings = {"stage": "dpo", "lr": 1e-4, "epochs": 2, "batch_size": 8, "balance": variant != "sentence-wise"}
        settings |= {"dpo": DPORecipe(layout="tree", beta=0.4, sft_weight=1.0)}
    await asyncio.to_thread(
        fine_tune, model=start, data=data, output=output, seed=lab.seed, save_steps=200, **settings
    )


async def _search(lab: Lab, stage: str, variant: str, model: Path) -> Path:
    """Return the training data of one of DeepRAG's stages, searching for it if there is none yet."""
    output = lab.folder / f"{stage}-{variant or 'paper'}.jsonl"
    if output.exists():
        return output
    size, training = lab.settings.searched, lab.multi_hop("train")
    asked = training[:size] if stage == "stage1" else training[size : 2 * size]
    kind = "sft" if stage == "stage1" else "pairs"
    settings = {
        "search": SearchConfig(variant=variant if variant in ("most", "random") else "minimal"),
        "pairs": PAIRS.get(variant, "optimal"),
    }
    async with lab.serve(model) as engine:
        corpus = lab.index.corpus_sha256
        return await search(kind, model, asked, output, lab.seed, engine, lab.retriever, corpus, **settings)


async def _with_lessons(lab: Lab) -> Path:
    """Write the lessons of ``taught`` and ``student``, and return the base model with all of their words."""
    extended, counts = lab.folder / "extended", {}
    if not (lab.folder / TOKENS).is_file():
        base = await checkpoint(lab, "base")
        examples = await lessons(lab, base)
        texts = (record.prompt + record.completion for records in examples.values() for record in records)
        with_words(base, texts, extended, selfrag.TOKENS)
        tokenizer = load_tokenizer(str(extended))
        for name, tokens in (("taught", lab.settings.tokens), ("student", lab.settings.few)):
            drawn, counts[name] = equal_shares(examples, tokenizer, tokens, lab.seed)
            write_records(lab.folder / f"{name}.jsonl", drawn)
        write_text(lab.folder / TOKENS, json.dumps(counts))
    return extended


async def _imitate(lab: Lab, start: Path, output: Path) -> None:
    """Train ``start`` on the records in ``output``'s name next to it."""
    data = lab.folder / f"{output.name}.jsonl"
    settings: dict[str, Any] = {"lr": 1e-3, "epochs": 3, "sft": SFTRecipe(pack_tokens=2048)}
    await asyncio.to_thread(fine_tune, "sft", start, data, output, lab.seed, **settings)
