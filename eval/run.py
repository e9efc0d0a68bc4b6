"""Runs strategies over questions and keeps their trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_train.llm.base import LLM
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
