"""Runs strategies over questions and keeps their trajectories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.summary import RunSummary, summarize
from eval.tables import main_table
from rag_train.llm.base import EngineError
from rag_train.progress import console
from rag_train.retrieval.base import Retriever
from rag_train.runner import Outcome, run
from rag_train.schema import Question, Trajectory
from rag_train.strategies import build
from rag_train.strategies.base import Kit
from rag_train.strategies.opening import KitConfig, open_kit


async def evaluate(
    spec: str, kit: Kit, questions: Sequence[Question], output: Path, settings: dict[str, Any]
) -> list[Trajectory]:
    """Answer every question, all concurrently, and write one trajectory a line to ``output`` (resumable).

    ``spec`` is a strategy with its settings, as `rag_train.strategies.check` reads it. A question whose prompt
    outgrows the model's context, or whose engine calls fail, is recorded with its error, and the run goes on.
    ``settings`` identify the run: with others, an existing ``output`` raises UserError.
    """
    strategy = build(spec, kit)

    async def work(question: Question) -> Outcome:
        try:
            trajectory = await strategy.answer(question)
        except (ValueError, EngineError) as error:
            trajectory = Trajectory(
                question_id=question.id, question=question.question, strategy=strategy.name, error=str(error)
            )
        return Outcome([trajectory], {"engine_calls": len(trajectory.calls), "failed": int(bool(trajectory.error))})

    settings = settings | {"strategy": spec, "passages": kit.passages, "instructions": kit.instructions}
    await run(questions, work, output, settings, label=spec)
    return [Trajectory.model_validate_json(line) for line in output.read_text(encoding="utf-8").splitlines()]


async def evaluate_model(
    config: KitConfig,
    retrievers: dict[str, Retriever],
    questions: Sequence[Question],
    output: Path,
    strategies: Sequence[str],
    settings: dict[str, Any],
) -> list[RunSummary]:
    """Evaluate one model with each strategy, write ``<strategy>.jsonl`` and ``summary.json``, print the table.

    Raises UserError for a strategy that is unknown or lacks something, before any question is asked.
    """
    settings = settings | {"model": config.model, "adapters": list(config.adapters), "reranker": config.reranker}
    runs = {}
    async with open_kit(config, retrievers) as kit:
        for name in strategies:
            build(name, kit)
        for name in strategies:
            runs[name] = await evaluate(name, kit, questions, output / f"{name}.jsonl", settings)
    cot = runs.get("cot")
    summaries = [summarize(questions, runs[name], strategy=name, cot=cot) for name in strategies]
    text = json.dumps([run.model_dump(mode="json") for run in summaries], indent=1)
    (output / "summary.json").write_text(text + "\n", encoding="utf-8")
    console.print(main_table(summaries).rich())
    return summaries
