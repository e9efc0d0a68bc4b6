"""DeepRAG's stages: making the data of a stage, and training on it.

Experiments and benchmarks run the same two functions, each with settings of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rag_train.data_synth.methods.deeprag import DeepRAGData, DeepRAGRecipe
from rag_train.llm.base import LLM
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Question
from rag_train.training.recipe import TrainRecipe
from rag_train.training.result import TrainResult
from rag_train.training.run import train

Data = Literal["cold_start", "sft", "pairs"]
"""Kinds of data (`DeepRAGRecipe.stage`)."""
Stage = Literal["sft", "dpo"]
"""Kinds of training (`TrainRecipe.stage`)."""
MAX_TOKENS = 1024
"""Longest example in tokens; training drops longer ones."""


async def search(
    stage: Data,
    model: Path,
    questions: Sequence[Question],
    output: Path,
    seed: int,
    engine: LLM,
    retriever: AsyncRetriever,
    **settings: Any,
) -> Path:
    """Search every question with ``engine``, which serves ``model``, and write the stage's data to ``output``.

    ``settings`` are more keys of the `DeepRAGRecipe`.
    """
    recipe = DeepRAGRecipe(
        stage=stage,
        questions=[],
        index="",
        model=str(model),
        output=str(output),
        seed=seed,
        instructions=False,
        **settings,
    )
    await DeepRAGData(recipe, questions, engine, retriever).write()
    return output


def fine_tune(stage: Stage, model: Path, data: Path, output: Path, seed: int, **settings: Any) -> TrainResult:
    """Train ``model`` on ``data`` and write it to ``output``; ``settings`` are more keys of the `TrainRecipe`."""
    recipe = TrainRecipe(
        stage=stage,
        model=str(model),
        data=data,
        output_dir=str(output),
        seed=seed,
        max_tokens=MAX_TOKENS,
        **settings,
    )
    return train(recipe)
