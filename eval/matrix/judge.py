"""Verdicts of a language model on the answers of an evaluation matrix (`rag_train.judge`).

Verdicts are stored in ``DIR/verdicts/<judge>/``, so that each distinct answer is judged once for all cells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from rag_train.errors import PromptTooLong
from rag_train.eval.matrix.cell import Cell, load_matrix
from rag_train.eval.matrix.store import read_cell, rescore, write_matrix
from rag_train.files import read_records
from rag_train.formats.prompting import instruction
from rag_train.judge import JUDGE, JudgeInput, verdict
from rag_train.llm.base import LLM
from rag_train.llm.engines import EngineConfig, open_engine
from rag_train.llm.memo import CallLog
from rag_train.provenance import weights_sha256
from rag_train.resumable import Outcome, cost, run
from rag_train.schema import Question, Record, Trajectory


class JudgeVerdict(Record):
    """The verdict on one answer, by the digest of its `JudgeInput`."""

    digest: str
    right: bool | None
    """None if the judge's text contains no verdict or the answer is too long for it; it then counts as wrong."""


async def judge_matrix(directory: Path, model: str, config: EngineConfig) -> list[Cell]:
    """Judge the answers of all cells and write ``judge`` into their scores and summaries.

    A missing answer is wrong without a verdict. Raises UserError if the matrix is damaged or the model cannot be
    opened.
    """
    cells = load_matrix(directory).cells
    contents = {cell.id: read_cell(directory, cell) for cell in cells}
    inputs = {id: list(map(_judge_input, asked, answered)) for id, (asked, answered, _) in contents.items()}
    folder = directory / "verdicts" / _digest(weights_sha256(model) or model)[:16]
    verdicts = _stored_verdicts(folder)
    wanted = {answer.digest: answer for answers in inputs.values() for answer in answers if answer.prediction}
    if missing := [answer for digest, answer in wanted.items() if digest not in verdicts]:
        batch = _digest("".join(answer.digest for answer in missing))[:12]
        async with open_engine(model, config) as llm:
            await judge_answers(llm, missing, folder / f"{batch}.jsonl")
        verdicts = _stored_verdicts(folder)
    judged: list[Cell] = []
    for cell in cells:
        right = [float(bool(answer.prediction and verdicts[answer.digest])) for answer in inputs[cell.id]]
        _, _, scores = contents[cell.id]
        scores = [score.model_copy(update={"judge": r}) for score, r in zip(scores, right, strict=True)]
        judged.append(rescore(directory, cell, scores))
    write_matrix(directory, judged)
    return judged


async def judge_answers(llm: LLM, answers: Sequence[JudgeInput], output: Path) -> None:
    """Judge ``answers`` with ``llm`` and write a `JudgeVerdict` per line to ``output``; resumable."""

    async def work(answer: JudgeInput) -> Outcome:
        log = CallLog(llm)
        try:
            right = await verdict(log, llm, answer)
        except PromptTooLong:
            right = None
        return Outcome([JudgeVerdict(digest=answer.digest, right=right)], cost(log.calls))

    await run(answers, work, output, {"prompt": instruction(JUDGE.name)}, label="judging")


def _judge_input(question: Question, trajectory: Trajectory) -> JudgeInput:
    return JudgeInput(question=question.question, answers=question.answers, prediction=trajectory.answer or "")


def _stored_verdicts(folder: Path) -> dict[str, bool | None]:
    """Return the stored verdicts by the digest of their answers."""
    verdicts = [verdict for file in sorted(folder.glob("*.jsonl")) for verdict in read_records(file, JudgeVerdict)]
    return {verdict.digest: verdict.right for verdict in verdicts}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
