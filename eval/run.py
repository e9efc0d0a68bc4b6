"""Runs strategies over questions and keeps their trajectories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.summary import RunSummary, summarize
from eval.tables import main_table
from rag_train.errors import UserError
from rag_train.llm.base import LLM
from rag_train.llm.engines import EngineConfig, open_engine
from rag_train.progress import console
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.runner import Outcome, run
from rag_train.schema import Question, Trajectory
from rag_train.strategies import STRATEGIES


async def evaluate(
    strategy_name: str,
    llm: LLM,
    retriever: AsyncRetriever,
    questions: Sequence[Question],
    output: Path,
    settings: dict[str, Any],
    *,
    passages: int,
    instructions: bool,
) -> list[Trajectory]:
    """Answer every question, all concurrently, and write one trajectory a line to ``output`` (resumable).

    A question whose prompt outgrows the model's context is recorded with its error, and the run goes on.
    ``settings`` identify the run: with others, an existing ``output`` raises UserError.
    """
    strategy = STRATEGIES[strategy_name](llm, retriever, passages, instructions)

    async def work(question: Question) -> Outcome:
        try:
            trajectory = await strategy.answer(question)
        except ValueError as error:
            trajectory = Trajectory(
                question_id=question.id, question=question.question, strategy=strategy.name, error=str(error)
            )
        return Outcome([trajectory], {"engine_calls": len(trajectory.calls)})

    settings = settings | {"strategy": strategy_name, "passages": passages, "instructions": instructions}
    await run(questions, work, output, settings, label=f"{strategy_name}")
    return [Trajectory.model_validate_json(line) for line in output.read_text(encoding="utf-8").splitlines()]


async def evaluate_model(
    model: str,
    engine: str,
    retriever: AsyncRetriever,
    questions: Sequence[Question],
    output: Path,
    *,
    strategies: Sequence[str] | None,
    passages: int,
    instructions: bool,
    settings: dict[str, Any],
) -> list[RunSummary]:
    """Evaluate one model with each strategy, write ``<strategy>.jsonl`` and ``summary.json``, print the table.

    Raises UserError for an unknown strategy or engine, before anything is loaded.
    """
    names = list(STRATEGIES) if not strategies else list(strategies)
    for name in names:
        if name not in STRATEGIES:
            raise UserError(f"--strategy {name}: unknown; the strategies are {', '.join(STRATEGIES)}")
    if engine not in ("vllm", "transformers"):
        raise UserError(f"--engine {engine}: unknown; the engines are vllm, transformers")
    runs = {}
    async with open_engine(model, EngineConfig(kind=engine)) as llm:
        for name in names:
            runs[name] = await evaluate(
                name,
                llm,
                retriever,
                questions,
                output / f"{name}.jsonl",
                settings | {"model": model},
                passages=passages,
                instructions=instructions,
            )
    cot = runs.get("cot")
    summaries = [summarize(questions, runs[name], strategy=name, cot=cot) for name in names]
    text = json.dumps([run.model_dump(mode="json") for run in summaries], indent=1)
    (output / "summary.json").write_text(text + "\n", encoding="utf-8")
    console.print(main_table(summaries).rich())
    return summaries
