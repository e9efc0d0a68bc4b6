"""`rag-train data check`: problems and statistics of a file of records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rag_train.data_synth.inspect.records import described, read_record_file
from rag_train.data_synth.inspect.statistics import Statistics, statistics_of
from rag_train.data_synth.knowable import strings, unknown
from rag_train.data_synth.leakage import HeldOutQuestions, Leak
from rag_train.formats import planrag
from rag_train.formats.deeprag import CONTEXT
from rag_train.questions.load import load_questions
from rag_train.schema import Plan, PreferencePair, Question, Record, SFTRecord, Trajectory

LINES_SHOWN = 5
"""Maximum number of lines listed with each finding."""


@dataclass(frozen=True)
class Finding:
    """A problem, and the numbers (from 1) of the lines that have it."""

    what: str
    lines: list[int]


@dataclass(frozen=True)
class Report:
    """Result of a check; ``kind`` is the record type's name, and ``findings`` is empty if there are no problems."""

    path: str
    kind: str
    statistics: Statistics
    findings: list[Finding]


def check(path: Path, tokenizer: str | None = None, against: Path | None = None) -> Report:
    """Check the file of records ``path``, and what its examples from annotations teach (see `knowable.unknown`).

    With a tokenizer, a directory or a hub name, lengths are measured in tokens. Records that leak a question of the
    file ``against`` are reported. Raises UserError if ``path`` is not a file of records, or if another input cannot
    be read.
    """
    file = read_record_file(path)
    held_out = HeldOutQuestions(load_questions(against, unanswerable="abstain")) if against else None
    loaded: Any = None
    if tokenizer:
        from rag_train.llm.checkpoint import load_tokenizer

        loaded = load_tokenizer(tokenizer)
    lines_by_problem: defaultdict[str, list[int]] = defaultdict(list)
    for invalid in file.invalid:
        lines_by_problem[f"invalid {file.record_type.__name__}: {invalid.reason}"].append(invalid.line)
    for line, record in file.records.items():
        for problem in problems(record):
            lines_by_problem[problem].append(line)
        if held_out:
            asked = isinstance(record, Question)
            leak = held_out.leak(record) if asked else held_out.leak_in_lines(text_lines(record))
            if leak:
                lines_by_problem[LEAKS[leak]].append(line)
    for problem, line in repetitions(file.records):
        lines_by_problem[problem].append(line)
    findings = [Finding(problem, lines) for problem, lines in lines_by_problem.items()]
    statistics = statistics_of(list(file.records.values()), loaded)
    return Report(str(path), file.record_type.__name__, statistics, findings)


LEAKS: dict[Leak, str] = {
    "text": "same text as an evaluation question",
    "entity": "shares an entity with an evaluation question",
}


def problems(record: Record) -> Iterator[str]:
    """Yield the problems within one record that its schema does not cover."""
    match record:
        case SFTRecord():
            if "".join(segment.text for segment in record.segments) != record.completion:
                yield "segments differ from the completion"
            if not any(segment.trained and segment.text for segment in record.segments):
                yield "no text is trained"
            if unknown(record):
                yield "target cannot be known from the prompt"
        case PreferencePair():
            if not 0 <= record.history_start <= len(record.prompt):
                yield "history_start is outside the prompt"
            if record.chosen == record.rejected:
                yield "chosen and rejected are the same"
        case Trajectory():
            yield from (f"plan: {problem}" for problem in planrag.problems(record.plan or Plan()))


def repetitions(records: Mapping[int, Record]) -> Iterator[tuple[str, int]]:
    """Yield (problem, line) for each line that repeats an id, or repeats or contradicts an earlier line."""
    ids: set[Any] = set()
    answers: dict[Any, Any] = {}
    for line, said in ((line, described(record)) for line, record in records.items()):
        if said.key in ids:
            yield "repeats an id", line
        if said.asked in answers:
            same = answers[said.asked] == said.answer
            yield "repeats an earlier line" if same else "contradicts an earlier line", line
        ids.add(said.key)
        answers.setdefault(said.asked, said.answer)


def text_lines(record: Record) -> Iterator[str]:
    """Yield the lines of a record's text without labels, passages and instruction.

    A line of JSON gives each of its strings instead.
    """
    for line in (line for text in described(record).texts for line in text.splitlines()):
        if line.startswith(("{", "[")):
            yield from strings(line)
        elif not line.startswith(CONTEXT):
            label, _, rest = line.partition(": ")
            yield rest or label


def render_report(report: Report) -> Group:
    """Render the report for a terminal."""
    statistics = report.statistics
    groups, lengths, findings = (Table(show_header=False, box=None, pad_edge=False) for _ in range(3))
    for name, count in statistics.groups.items():
        groups.add_row(Text(name), f"{count:,}")
    most = max((bin.records for bin in statistics.histogram), default=0)
    for bin in statistics.histogram:
        bar = "█" * round(40 * bin.records / most)
        lengths.add_row(f"{bin.low:,} to {bin.high - 1:,}", Text(bar, "blue"), f"{bin.records:,}")
    for finding in report.findings:
        lines = ", ".join(map(str, finding.lines[:LINES_SHOWN])) + (
            ", …" if len(finding.lines) > LINES_SHOWN else ""
        )
        findings.add_row(Text(f"{len(finding.lines):,}", "red"), Text(finding.what), Text(f"line {lines}", "dim"))
    quantiles = ", ".join(f"{name} {length:,}" for name, length in statistics.lengths.items())
    parts = [Text(f"{report.path}: {statistics.records:,} records ({report.kind})", "bold"), groups]
    parts += [Text(f"\nLength in {statistics.unit}: {quantiles}"), lengths]
    if statistics.trained_share is not None:
        parts.append(Text(f"\nTrained: {statistics.trained_share:.1%} of the {statistics.unit} read"))
    parts += [Text("\nProblems", "bold"), findings] if report.findings else [Text("\nNo problems", "bold")]
    return Group(*parts)
