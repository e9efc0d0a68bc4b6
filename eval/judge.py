"""A language model's verdict on answers that string comparison is too strict for (DualRAG, appendix D).

Verdicts are kept in ``DIR/verdicts/<judge>/``, so that an answer is judged once, whichever cells give it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from eval.matrix import Cell, load_matrix, read_cell, read_lines, rescore, write_matrix
from rag_train.formats.prompting import as_turn, instruction
from rag_train.formats.tasks import Task
from rag_train.llm.base import LLM
from rag_train.llm.engines import EngineConfig, open_engine
from rag_train.llm.memo import CallLog
from rag_train.provenance import weights_sha256
from rag_train.runner import Outcome, cost, run
from rag_train.schema import Question, Record, Trajectory

JUDGE = Task("judge", "Right:", Literal["yes", "no"], max_tokens=4)


class Plea(Record):
    """An answer to be judged."""

    question: str
    answers: list[str]
    prediction: str

    @property
    def digest(self) -> str:
        return _digest(self.model_dump_json())


class Verdict(Record):
    """None: the judge's text was no verdict, which counts as wrong."""

    digest: str
    right: bool | None


async def judge(directory: Path, model: str, config: EngineConfig) -> list[Cell]:
    """Judge the answers of all cells and write ``judge`` into their scores and summaries.

    No answer is wrong without asking. Raises UserError for a damaged matrix or a model that cannot be opened.
    """
    cells = load_matrix(directory).cells
    read = {cell.id: read_cell(directory, cell) for cell in cells}
    pleas = {id: list(map(_plea, questions, trajectories)) for id, (questions, trajectories, _) in read.items()}
    folder = directory / "verdicts" / _digest(weights_sha256(model) or model)[:16]
    known = _known(folder)
    wanted = {plea.digest: plea for some in pleas.values() for plea in some if plea.prediction}
    if missing := [plea for digest, plea in wanted.items() if digest not in known]:
        batch = _digest("".join(plea.digest for plea in missing))[:12]
        async with open_engine(model, config) as llm:
            await ask(llm, missing, folder / f"{batch}.jsonl")
        known = _known(folder)
    judged: list[Cell] = []
    for cell in cells:
        verdicts = [float(bool(plea.prediction and known[plea.digest])) for plea in pleas[cell.id]]
        scores = [s.model_copy(update={"judge": v}) for s, v in zip(read[cell.id][2], verdicts, strict=True)]
        judged.append(rescore(directory, cell, scores))
    write_matrix(directory, judged)
    return judged


async def ask(llm: LLM, pleas: Sequence[Plea], output: Path) -> None:
    """Have ``llm`` judge ``pleas``, and write a `Verdict` a line to ``output`` (resumable)."""

    async def work(plea: Plea) -> Outcome:
        log = CallLog(llm)
        right = await verdict(log, llm, plea)
        return Outcome([Verdict(digest=plea.digest, right=right)], cost(log.calls))

    await run(pleas, work, output, {"prompt": instruction(JUDGE.name)}, label="judging")


async def verdict(log: CallLog, llm: LLM, plea: Plea) -> bool | None:
    """Whether the answer is right, by ``llm``, whose calls go to ``log``; None: what it says is no verdict."""
    fields = [
        ("Question", plea.question),
        ("Accepted answer", plea.answers),
        ("Prediction", plea.prediction),
    ]
    prompt = as_turn(llm.tokenizer, f"{instruction(JUDGE.name)}\n\n{JUDGE.body(fields)}") + JUDGE.lead
    said = JUDGE.parse((await log.complete(JUDGE.name, prompt, JUDGE.sampling())).text)
    return None if said is None else said == "yes"


def _plea(question: Question, trajectory: Trajectory) -> Plea:
    return Plea(question=question.question, answers=question.answers, prediction=trajectory.answer or "")


def _known(folder: Path) -> dict[str, bool | None]:
    verdicts = [verdict for file in sorted(folder.glob("*.jsonl")) for verdict in read_lines(file, Verdict)]
    return {verdict.digest: verdict.right for verdict in verdicts}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
