"""What a judge says of the answers of an evaluation matrix (`rag_train.llm_judge`), and the scores that it gives.

Replies are stored in ``DIR/verdicts/<key>/``, so that a judge is asked each thing once for all cells. The key is a
hash of the model, its engine's settings, the prompts and the code that asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from rag_train.answers import accurate, exact_match, f1, rules_of
from rag_train.errors import UserError
from rag_train.eval.matrix.answers import digest
from rag_train.eval.matrix.cell import Cell, load_matrix
from rag_train.eval.matrix.store import read_cell, rescore, write_matrix
from rag_train.eval.metrics.scores import BEST_OF_TWO
from rag_train.formats.instructions import OURS, Instructions
from rag_train.formats.planrag import depths
from rag_train.identity import code
from rag_train.jobs.files import read_records
from rag_train.jobs.items import UNFIT, Outcome, cost, reason_of, run
from rag_train.jobs.partial import REJECTED
from rag_train.jobs.retries import current
from rag_train.llm.base import LLM
from rag_train.llm.call_log import CallLog
from rag_train.llm.engines import EngineConfig, identity, open_engine
from rag_train.llm_judge import Asked, JudgeInput, LongAnswer, Subqueries, ask
from rag_train.provenance import settings_hash
from rag_train.schema import Question, Record, Trajectory

SHORT_ALREADY = ("direct", "rag", "oracle")
"""Strategies whose answers DualRAG's release scores as they are."""
CHAINS = ("ircot", "flare")
"""Strategies whose long answer is the whole chain of thought in DualRAG's release."""


class JudgeReply(Record):
    """A judge's reply, by the digest of what it was asked."""

    digest: str
    value: str | None
    """None if the judge's text is not of the form that was asked for, or the judge refused to reply."""
    refused: str = ""
    """Reason why the judge refused; empty if it did not."""


class Judge:
    """A model that is asked each thing once. Its engine starts when something was not asked before."""

    def __init__(self, directory: Path, model: str, config: EngineConfig, instructions: Instructions):
        self._model, self._config, self._instructions = model, config, instructions
        settings = identity(model, config) | {"code": code(ask, instructions=instructions)}
        self._folder = directory / "verdicts" / settings_hash(settings, 16)
        self._engine: LLM | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Judge:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()

    async def replies(self, asked: Sequence[Asked | None]) -> list[JudgeReply]:
        """Return the judge's replies, in the order of ``asked``; without a value where there is nothing to ask.

        Raises OpenItems if some stay open.
        """
        stored = _stored_replies(self._folder)
        wanted = {about.digest: about for about in asked if about}
        if missing := [about for key, about in wanted.items() if key not in stored]:
            if self._engine is None:
                self._engine = await self._stack.enter_async_context(open_engine(self._model, self._config))
            proven = any(reply.value is not None for reply in stored.values())
            output = self._folder / f"{digest(missing)[:12]}.jsonl"
            await ask_judge(self._engine, missing, output, proven, self._instructions)
            stored = _stored_replies(self._folder)
        nothing = JudgeReply(digest="", value=None)
        return [stored[about.digest] if about else nothing for about in asked]


async def judge_matrix(
    directory: Path,
    model: str,
    config: EngineConfig,
    measure: str = "answers",
    instructions: Instructions = OURS,
) -> list[Cell]:
    """Ask a judge about all answers of a matrix, and write a measure into their scores and summaries.

    - answers: ``judge``, whether an answer is right. A missing answer is wrong without a verdict.
    - best-of-two: ``best_of_two_*``, the better score of an answer and of the short one taken from it, as in
      DualRAG's release (``src/startup/run_rag.py``).
    - information-gain: ``gains``, the grade of a plan's subqueries up to each depth (PlanRAG, table 6).

    Raises UserError if the matrix is damaged, has nothing to measure, or the model cannot be opened.
    """
    score = MEASURES.get(measure)
    if score is None:
        raise UserError(f"--measure {measure}: unknown; give one of {', '.join(MEASURES)}")
    cells = load_matrix(directory).cells
    read = {cell.id: read_cell(directory, cell) for cell in cells}
    answers = [pair for asked, answered, _ in read.values() for pair in zip(asked, answered, strict=True)]
    if measure == "information-gain" and not any(answer.plan and answer.plan.nodes for _, answer in answers):
        raise UserError(f"{directory}: no answer has a plan to grade; evaluate planrag, qd-rag or their variants")
    async with Judge(directory, model, config, instructions) as judge:
        judged = iter(await score(judge, answers))
    written: list[Cell] = []
    for cell in cells:
        scores = read[cell.id][2]
        own = list(islice(judged, len(scores)))
        refused = Counter(reason for _, reasons in own for reason in reasons)
        scores = [score.model_copy(update=values) for score, (values, _) in zip(scores, own, strict=True)]
        written.append(rescore(directory, cell, scores, dict(refused)))
    write_matrix(directory, written)
    return written


Judged = list[tuple[dict[str, Any], list[str]]]
"""The new values of each answer's score, and the reasons why the judge refused to reply."""


async def _verdicts(judge: Judge, answers: Sequence[tuple[Question, Trajectory]]) -> Judged:
    replies = await judge.replies([_judge_input(question, answer.answer) for question, answer in answers])
    return [({"judge": float(reply.value == "yes")}, _reasons(reply)) for reply in replies]


async def _best_of_two(judge: Judge, answers: Sequence[tuple[Question, Trajectory]]) -> Judged:
    long = [_response(answer) for _, answer in answers]
    asked = [
        LongAnswer(question=question.question, answer=text) if text and not _is_short(question, answer) else None
        for (question, answer), text in zip(answers, long, strict=True)
    ]
    shortened = await judge.replies(asked)
    short = [reply.value for reply in shortened]
    questions = [question for question, _ in answers]
    of_long = await judge.replies(list(map(_judge_input, questions, long)))
    of_short = await judge.replies(list(map(_judge_input, questions, short)))
    found: Judged = []
    for question, *both, shortening in zip(
        questions, zip(long, of_long, strict=True), zip(short, of_short, strict=True), shortened, strict=True
    ):
        rules, accepted = rules_of(question), question.answers
        scores = [
            (
                float(exact_match(text, accepted, rules)),
                f1(text, accepted, rules),
                float(accurate(text, accepted, rules)),
                float(reply.value == "yes"),
            )
            for text, reply in both
        ]
        best = dict(zip(BEST_OF_TWO, map(max, *scores), strict=True))
        found.append((best, _reasons(shortening, *(reply for _, reply in both))))
    return found


async def _gains(judge: Judge, answers: Sequence[tuple[Question, Trajectory]]) -> Judged:
    asked = [_subqueries(question, answer) for question, answer in answers]
    replies = iter(await judge.replies([each for of in asked for each in of]))
    found: Judged = []
    for of in asked:
        own = list(islice(replies, len(of)))
        grades = [None if reply.value is None else float(reply.value) for reply in own]
        found.append(({"gains": grades}, _reasons(*own)))
    return found


MEASURES = {"answers": _verdicts, "best-of-two": _best_of_two, "information-gain": _gains}


def _judge_input(question: Question, prediction: str | None) -> JudgeInput | None:
    if not prediction:
        return None
    return JudgeInput(question=question.question, answers=question.answers, prediction=prediction)


def _is_short(question: Question, answer: Trajectory) -> bool:
    """Whether DualRAG's release takes no short answer from this one."""
    return _name(answer) in SHORT_ALREADY or bool(question.metadata.get("long_form"))


def _response(answer: Trajectory) -> str | None:
    """Return the long answer: the answer as it is written or, of `CHAINS`, with the thoughts before it."""
    if _name(answer) not in CHAINS:
        return answer.answer
    return " ".join(filter(None, (answer.reasoning, answer.answer))) or None


def _name(answer: Trajectory) -> str:
    return answer.strategy.partition(",")[0]


def _subqueries(question: Question, answer: Trajectory) -> list[Subqueries]:
    """Return the subqueries of the answer's plan up to each depth, from the first one on."""
    if not answer.plan:
        return []
    depth = depths(answer.plan)
    return [
        Subqueries(
            question=question.question,
            subqueries=[f"{node.id}: {node.question}" for node in answer.plan.nodes if depth[node.id] <= deepest],
        )
        for deepest in range(1, max(depth.values(), default=0) + 1)
    ]


def _reasons(*replies: JudgeReply) -> list[str]:
    return [reply.refused for reply in replies if reply.refused]


async def ask_judge(
    llm: LLM, asked: Sequence[Asked], output: Path, proven: bool = False, instructions: Instructions = OURS
) -> None:
    """Ask ``llm`` about each of ``asked`` and write a `JudgeReply` per line to ``output``; resumable.

    ``proven`` says whether the judge has replied as asked before. Raises OpenItems if some stay open.
    """

    async def work(about: Asked) -> Outcome:
        log = CallLog(llm)
        try:
            value = await ask(log, llm, about, instructions)
        except UNFIT as error:
            current().records = [JudgeReply(digest=about.digest, value=None, refused=reason_of(error))]
            raise
        return Outcome([JudgeReply(digest=about.digest, value=value)], cost(log.calls))

    texts = {name: instructions[name].text for name in dict.fromkeys(about.task.name for about in asked)}
    await run(asked, work, output, {"prompts": texts}, label="judging", proven=proven)


def _stored_replies(folder: Path) -> dict[str, JudgeReply]:
    """Return the stored replies by the digest of what was asked."""
    files = (file for file in sorted(folder.glob("*.jsonl")) if not file.name.endswith(REJECTED))
    return {reply.digest: reply for file in files for reply in read_records(file, JudgeReply)}
