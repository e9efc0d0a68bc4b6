"""Answers questions with a strategy and stores the trajectories, so that no question is answered twice."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_train.errors import UserError
from rag_train.formats.instructions import OURS, Instructions
from rag_train.identity import code
from rag_train.jobs.files import read_records, write_records
from rag_train.jobs.items import UNFIT, Outcome, cost, reason_of, run
from rag_train.jobs.retries import current
from rag_train.provenance import settings_hash
from rag_train.schema import Question, Record, Trajectory
from rag_train.strategies.base import Kit, Run
from rag_train.strategies.registry import build, parse_strategy


class Answers:
    """The trajectories of one strategy under fixed settings, stored in batches in a folder.

    ``folder/<key>/`` contains each batch of trajectories and its questions; the key is a hash of the strategy, its
    code and prompts, and the settings. A batch that was interrupted continues when the same questions are asked
    again.
    """

    def __init__(self, folder: Path, strategy: str, settings: Mapping[str, Any], instructions: Instructions = OURS):
        """Open the stored answers below ``folder``.

        ``settings`` is all that the answers depend on besides the strategy and the kit's ``instructions``, such as
        model and index; JSON values. The progress bar shows ``settings["questions"]``, the name of the question
        set, if it is there.
        """
        self.strategy = strategy
        version = code(parse_strategy(strategy)[0], instructions=instructions)
        self.settings = {**settings, "strategy": strategy, "code": version}
        self.folder = folder / settings_hash(self.settings, 16)
        self._stored: dict[str, Trajectory] = {}
        for question_file in sorted(self.folder.glob("*.questions.jsonl")):
            batch = question_file.with_name(question_file.name.replace(".questions", ""))
            if batch.exists():
                self._add(read_records(question_file, Question), read_records(batch, Trajectory))

    def missing(self, questions: Sequence[Question]) -> list[Question]:
        """Return the questions without a stored answer."""
        return [question for question in questions if digest([question]) not in self._stored]

    async def ask(self, kit: Kit, questions: Sequence[Question]) -> list[Trajectory]:
        """Answer the missing questions concurrently and return the trajectories of all ``questions``.

        The trajectory of a question that is refused records the error and the reason.

        Raises:
            OpenItems: if questions stay open (`rag_train.jobs.items`).
            UserError: if the kit lacks what the strategy needs.
        """
        if missing := self.missing(questions):
            batch = self.folder / f"{digest(missing)[:12]}.jsonl"
            write_records(batch.with_suffix(".questions.jsonl"), missing)
            self._add(missing, await self._answer(kit, missing, batch))
        return self.of(questions)

    def of(self, questions: Sequence[Question]) -> list[Trajectory]:
        """Return the stored trajectories of ``questions``, in their order."""
        return [self._stored[digest([question])] for question in questions]

    async def _answer(self, kit: Kit, questions: Sequence[Question], output: Path) -> list[Trajectory]:
        strategy = build(self.strategy, kit)

        async def work(question: Question) -> Outcome:
            answering = Run(strategy, question)
            try:
                trajectory = await answering.answer()
            except (*UNFIT, UserError) as error:
                ended = Trajectory(
                    question_id=question.id,
                    question=question.question,
                    strategy=strategy.name,
                    steps=answering.steps,
                    calls=current().calls,
                    error=str(error),
                    refused="" if isinstance(error, UserError) else reason_of(error),
                )
                current().records = [ended]
                raise
            return Outcome([trajectory], cost(trajectory.calls))

        settings = self.settings | {"passages": kit.passages, "instructions": bool(kit.instructions)}
        label = " on ".join(filter(None, (self.strategy, self.settings.get("questions"))))
        proven = any(trajectory.error is None for trajectory in self._stored.values())
        await run(questions, work, output, settings, label=label, proven=proven)
        return read_records(output, Trajectory)

    def _add(self, questions: Sequence[Question], trajectories: Sequence[Trajectory]) -> None:
        for question, trajectory in zip(questions, trajectories, strict=True):
            self._stored[digest([question])] = trajectory


def needs_attention(strategy: str) -> bool:
    """Whether the strategy reads attention weights, which vLLM does not return."""
    return any(need.ability == "attention" for need in parse_strategy(strategy)[0].abilities)


def digest(records: Sequence[Record]) -> str:
    """Return the SHA-256 of the records' contents."""
    return hashlib.sha256("\n".join(record.model_dump_json() for record in records).encode()).hexdigest()
