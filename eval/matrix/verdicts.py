"""Verdicts of a language model on the answers of an evaluation matrix (`rag_train.llm_judge`).

Verdicts are stored in ``DIR/verdicts/<key>/``, so that each distinct answer is judged once for all cells. The key
is a hash of the model, its engine's settings, the prompt and the code that asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rag_train.eval.matrix.answers import digest
from rag_train.eval.matrix.cell import Cell, load_matrix
from rag_train.eval.matrix.store import read_cell, rescore, write_matrix
from rag_train.formats.instructions import OURS
from rag_train.identity import code
from rag_train.jobs.files import read_records
from rag_train.jobs.items import UNFIT, Outcome, cost, reason_of, run
from rag_train.jobs.partial import REJECTED
from rag_train.jobs.retries import current
from rag_train.llm.base import LLM
from rag_train.llm.call_log import CallLog
from rag_train.llm.engines import EngineConfig, identity, open_engine
from rag_train.llm_judge import JUDGE, JudgeInput, verdict
from rag_train.provenance import settings_hash
from rag_train.schema import Question, Record, Trajectory


class JudgeVerdict(Record):
    """The verdict on one answer, by the digest of its `JudgeInput`."""

    digest: str
    right: bool | None
    """None if the judge's text contains no verdict or the judge refused the answer; it then counts as wrong."""
    refused: str = ""
    """Reason why the judge refused the answer; empty if it did not."""


async def judge_matrix(directory: Path, model: str, config: EngineConfig) -> list[Cell]:
    """Judge the answers of all cells and write ``judge`` into their scores and summaries.

    A missing answer is wrong without a verdict. Raises UserError if the matrix is damaged or the model cannot be
    opened.
    """
    cells = load_matrix(directory).cells
    contents = {cell.id: read_cell(directory, cell) for cell in cells}
    inputs = {id: list(map(_judge_input, asked, answered)) for id, (asked, answered, _) in contents.items()}
    settings = identity(model, config) | {"code": code(verdict)}
    folder = directory / "verdicts" / settings_hash(settings, 16)
    verdicts = _stored_verdicts(folder)
    wanted = {answer.digest: answer for answers in inputs.values() for answer in answers if answer.prediction}
    if missing := [answer for key, answer in wanted.items() if key not in verdicts]:
        batch = digest(missing)[:12]
        async with open_engine(model, config) as llm:
            proven = any(verdict.right is not None for verdict in verdicts.values())
            await judge_answers(llm, missing, folder / f"{batch}.jsonl", proven)
        verdicts = _stored_verdicts(folder)
    judged: list[Cell] = []
    for cell in cells:
        judged_answers = [verdicts.get(answer.digest) if answer.prediction else None for answer in inputs[cell.id]]
        right = [float(bool(each and each.right)) for each in judged_answers]
        refused = Counter(each.refused for each in judged_answers if each and each.refused)
        _, _, scores = contents[cell.id]
        scores = [score.model_copy(update={"judge": r}) for score, r in zip(scores, right, strict=True)]
        judged.append(rescore(directory, cell, scores, dict(refused)))
    write_matrix(directory, judged)
    return judged


async def judge_answers(llm: LLM, answers: Sequence[JudgeInput], output: Path, proven: bool = False) -> None:
    """Judge ``answers`` with ``llm`` and write a `JudgeVerdict` per line to ``output``; resumable.

    ``proven`` says whether the judge has given verdicts before. Raises OpenItems if answers stay open.
    """

    async def work(answer: JudgeInput) -> Outcome:
        log = CallLog(llm)
        try:
            right = await verdict(log, llm, answer)
        except UNFIT as error:
            current().records = [JudgeVerdict(digest=answer.digest, right=None, refused=reason_of(error))]
            raise
        return Outcome([JudgeVerdict(digest=answer.digest, right=right)], cost(log.calls))

    await run(answers, work, output, {"prompt": OURS[JUDGE.name].text}, label="judging", proven=proven)


def _judge_input(question: Question, trajectory: Trajectory) -> JudgeInput:
    return JudgeInput(question=question.question, answers=question.answers, prediction=trajectory.answer or "")


def _stored_verdicts(folder: Path) -> dict[str, JudgeVerdict]:
    """Return the stored verdicts by the digest of their answers."""
    files = (file for file in sorted(folder.glob("*.jsonl")) if not file.name.endswith(REJECTED))
    return {verdict.digest: verdict for file in files for verdict in read_records(file, JudgeVerdict)}
