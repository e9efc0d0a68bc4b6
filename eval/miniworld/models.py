"""The mini world's models by name, each trained when it is first asked for and kept in the lab's folder."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from rag_train.data_synth.deeprag.examples import PairVariant
from rag_train.data_synth.deeprag.search import SearchConfig
from rag_train.eval.demo.stages import fine_tune, search
from rag_train.eval.miniworld import students
from rag_train.eval.miniworld.lab import Lab
from rag_train.eval.miniworld.lessons import lessons
from rag_train.eval.miniworld.students import Student
from rag_train.files import write_records
from rag_train.miniworld.pretrain import PretrainConfig, pretrained
from rag_train.miniworld.vocabulary import with_words
from rag_train.progress import console
from rag_train.schema import SFTRecord
from rag_train.strategies.baselines import selfrag
from rag_train.training.recipe import DPORecipe, SFTRecipe
from rag_train.training.result import RESULT

Stage = Literal["stage1", "stage1-most", "stage1-random", "stage2", "stage2-all-nodes", "stage2-sentence-wise"]
"""DeepRAG's stages, with the variants of the paper's Tables 4 (which trajectory is imitated) and 5 (which pairs
calibrate)."""

Model = Literal["base", "taught", "student", Stage, Student]
"""Names of the models.

- base: the pretrained model.
- taught: the base model, taught every module's and baseline's format by gold examples.
- student: the same with few examples, so that a teacher's data can improve it.
- the `Stage`s: the base model trained by DeepRAG.
- the `Student`s: models fine-tuned on a teacher's examples.
"""

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
        n = lab.settings.lessons if name == "taught" else lab.settings.few
        records = await lessons(
            lab.world, lab.retriever, questions=n, compounds=n // 2, readings=n * 15, repeats=n * 4
        )
        await _teach(lab, await checkpoint(lab, "base"), records, directory)
    else:
        records = await students.examples(lab, name, teacher=await checkpoint(lab, "taught"))
        start = await checkpoint(lab, "taught" if name == "examiner" else "student")
        await _teach(lab, start, records, directory)
    return directory


async def _train_deeprag(lab: Lab, name: str, output: Path) -> None:
    stage, _, variant = name.partition("-")
    start = await checkpoint(lab, "base" if stage == "stage1" else "stage1")
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


async def _teach(lab: Lab, start: Path, records: Sequence[SFTRecord], output: Path) -> None:
    """Extend the vocabulary of ``start`` by the words of ``records``, then train on them."""
    data, extended = lab.folder / f"{output.name}.jsonl", lab.folder / f"{output.name}-extended"
    write_records(data, records)
    texts = (record.prompt + record.completion for record in records)
    with_words(start, texts, extended, selfrag.TOKENS)
    settings: dict[str, Any] = {"lr": 1e-3, "epochs": 3, "sft": SFTRecipe(pack_tokens=2048)}
    await asyncio.to_thread(fine_tune, "sft", extended, data, output, lab.seed, **settings)
    shutil.rmtree(extended)
