"""Accuracy of a model's modules on held-out training examples.

For examples of any module: the model continues the text before each trained segment, and is right if it writes the
segment character for character. For modules with few distinct answers (routers, judges), the score includes a
confusion matrix, as in HANRAG, section 4.2.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field

from rag_train.errors import Refused, UserError
from rag_train.eval.metrics.summary import counted
from rag_train.jobs.files import read_records
from rag_train.llm.base import LLM, Sampling
from rag_train.llm.call_log import CallLog
from rag_train.llm.control import unmarked
from rag_train.llm.engines import EngineConfig, open_engine
from rag_train.schema import Record, SFTRecord
from rag_train.strategies.base import together
from rag_train.table import Table
from rag_train.training.data import REMEDY, document

CLASSES = 8
"""A module is a classifier if it has at most this many distinct answers and twice as many examples as answers."""


class ModuleScore(Record):
    """The score of one module."""

    task: str
    n: int
    right: int
    refused: dict[str, int] = Field(default_factory=dict)
    """Number of examples whose prompt was refused, by reason; they count as wrong."""
    confusion: dict[str, dict[str, int]] | None = None
    """For each wanted answer, how often each answer was written; None for modules that are not classifiers."""

    @property
    def accuracy(self) -> float:
        return self.right / self.n


async def validate_file(model: str, engine: EngineConfig, file: Path) -> list[ModuleScore]:
    """Score a model on a file of SFTRecords. Raises UserError if the file has none or is malformed."""
    records = read_records(file, SFTRecord, REMEDY)
    if not records:
        raise UserError(f"{file}: no examples; {REMEDY}")
    async with open_engine(model, engine) as llm:
        return await validate(llm, records)


async def validate(llm: LLM, records: Sequence[SFTRecord]) -> list[ModuleScore]:
    """Score each task, in alphabetical order. Raises UserError if all prompts are refused."""
    tokenizer = llm.tokenizer
    refused: list[tuple[str, Refused]] = []

    async def complete(task: str, prompt: str, wanted: str) -> tuple[str, str, str]:
        length = len(tokenizer(wanted, add_special_tokens=False)["input_ids"])
        try:
            text = (await CallLog(llm).complete(task, prompt, Sampling(max_tokens=length + 1))).text
        except Refused as error:
            refused.append((task, error))
            return task, wanted.strip(), ""
        lines = wanted.strip().count("\n") + 1
        # A segment that ends within a line is ended by the strategy, not by the model.
        written = "\n".join(text.strip().split("\n")[:lines]) if wanted.endswith("\n") else text[: len(wanted)]
        return task, wanted.strip(), written.strip()

    completions = await together(
        complete(*segment) for record in records for segment in _trained(record, tokenizer)
    )
    if refused and len(refused) == len(completions):
        raise UserError(
            f"{llm.name}: all {len(refused):,} examples were refused ({refused[0][1]}); correct the cause"
        )
    by_task: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for task, wanted, written in completions:
        by_task[task].append((wanted, written))
    reasons = {task: Counter(error.reason for of, error in refused if of == task) for task in by_task}
    return [_score(task, pairs, reasons[task]) for task, pairs in sorted(by_task.items())]


def _trained(record: SFTRecord, tokenizer) -> Iterator[tuple[str, str, str]]:
    """Yield (task, prompt, text) of each trained segment."""
    prompt = ""
    for segment in document(tokenizer, record):
        if segment.trained:
            yield record.task, prompt, unmarked(segment.text)
        prompt += segment.text


def _score(task: str, pairs: Sequence[tuple[str, str]], refused: dict[str, int]) -> ModuleScore:
    """Score the (wanted, written) pairs of one task, of which some were ``refused``, by reason."""
    right = sum(wanted == written for wanted, written in pairs)
    answers = sorted({wanted for wanted, _ in pairs})
    confusion = None
    if 1 < len(answers) <= CLASSES and 2 * len(answers) <= len(pairs):
        confusion = {
            answer: dict(Counter(written for wanted, written in pairs if wanted == answer).most_common())
            for answer in answers
        }
    return ModuleScore(task=task, n=len(pairs), right=right, refused=refused, confusion=confusion)


def module_tables(scores: Sequence[ModuleScore]) -> list[Table]:
    """Return a table of accuracies and a confusion matrix for each classifier."""
    rows = [[score.task or "trajectory", f"{score.n:,}", f"{100 * score.accuracy:.1f}"] for score in scores]
    caption = "Examples that the module writes character for character, in percent."
    notes = [
        f"Examples refused, which count as wrong: {score.task or 'trajectory'} ({counted(score.refused)})."
        for score in scores
        if score.refused
    ]
    tables = [Table("Modules", caption, ["Task", "Examples", "Accuracy"], rows, notes)]
    for score in scores:
        if score.confusion:
            classes = list(score.confusion)
            rows = [
                [wanted, *(str(row.get(answer, 0)) for answer in classes), str(_others(row, classes))]
                for wanted, row in score.confusion.items()
            ]
            caption = "Rows: wanted answers; columns: written answers."
            tables.append(Table(score.task, caption, ["Wanted", *classes, "other"], rows))
    return tables


def _others(row: dict[str, int], classes: Sequence[str]) -> int:
    return sum(count for answer, count in row.items() if answer not in classes)
