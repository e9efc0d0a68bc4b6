"""How often a model writes what its training examples want, module by module.

For held-out examples of any factory: each stretch of text that is trained is asked for, given all before it, and is
right if it is the same to the letter. Where a module has few answers (a router, a judge), what it says instead is
counted: HANRAG's router, say (section 4.2).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from eval.tables import Table
from rag_train.errors import UserError
from rag_train.formats.prompting import as_turn
from rag_train.llm.base import LLM, Sampling
from rag_train.llm.engines import EngineConfig, open_engine
from rag_train.progress import console
from rag_train.schema import Record, SFTRecord
from rag_train.strategies.base import together
from rag_train.training.data import read_records

FEW = 8
"""A module with at most this many answers is a classifier."""


class ModuleScore(Record):
    """One module's score."""

    task: str
    n: int
    right: int
    confusion: dict[str, dict[str, int]] | None = None
    """How often each wanted answer was answered so; None where there are more than `FEW`."""

    @property
    def accuracy(self) -> float:
        return self.right / self.n


async def run(model: str, engine: EngineConfig, file: Path) -> list[ModuleScore]:
    """Validate a model on a file of SFTRecords. Raises UserError for what is no such file or holds none."""
    records = [record for _, record in read_records(file, SFTRecord)]
    if not records:
        raise UserError(f"{file}: no examples; give a file that `rag-train synth` wrote")
    async with open_engine(model, engine) as llm:
        return await validate(llm, records)


async def validate(llm: LLM, records: Sequence[SFTRecord]) -> list[ModuleScore]:
    """A score for each task, in the order of their names."""
    tokenizer = llm.tokenizer

    async def ask(task: str, prompt: str, wanted: str) -> tuple[str, str, str]:
        length = len(tokenizer(wanted, add_special_tokens=False)["input_ids"])
        text = (await llm.complete(prompt, Sampling(max_tokens=length + 1))).text
        lines = wanted.strip().count("\n") + 1
        # A stretch that does not end a line is ended by the harness, not by the model.
        cut = "\n".join(text.strip().split("\n")[:lines]) if wanted.endswith("\n") else text[: len(wanted)]
        return task, wanted.strip(), cut.strip()

    found = await together(ask(*stretch) for record in records for stretch in _stretches(record, tokenizer))
    by_task: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for task, wanted, written in found:
        by_task[task].append((wanted, written))
    return [_score(task, pairs) for task, pairs in sorted(by_task.items())]


def _stretches(record: SFTRecord, tokenizer) -> Iterator[tuple[str, str, str]]:
    prompt = as_turn(tokenizer, record.prompt)
    for segment in record.segments:
        if segment.trained:
            yield record.task, prompt, segment.text
        prompt += segment.text


def _score(task: str, pairs: Sequence[tuple[str, str]]) -> ModuleScore:
    right = sum(wanted == written for wanted, written in pairs)
    answers = Counter(wanted for wanted, _ in pairs)
    confusion = None
    if 1 < len(answers) <= FEW:
        confusion = {
            answer: dict(Counter(written for wanted, written in pairs if wanted == answer).most_common())
            for answer in sorted(answers)
        }
    return ModuleScore(task=task, n=len(pairs), right=right, confusion=confusion)


def show(scores: Sequence[ModuleScore]) -> None:
    """Print the scores, and a confusion matrix for each classifier."""
    rows = [[one.task or "trajectory", f"{one.n:,}", f"{100 * one.accuracy:.1f}"] for one in scores]
    caption = "How often a module writes its example to the letter, in percent."
    console.print(Table("Modules", caption, ["Task", "Examples", "Accuracy"], rows).rich())
    for one in scores:
        if one.confusion:
            written = list(dict.fromkeys([*one.confusion, *(w for row in one.confusion.values() for w in row)]))
            rows = [[want, *(str(row.get(w, 0)) for w in written)] for want, row in one.confusion.items()]
            caption = "Rows: what is wanted; columns: what is written."
            console.print(Table(one.task, caption, ["", *written], rows).rich())
