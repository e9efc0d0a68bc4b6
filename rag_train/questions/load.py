"""Loading of question sets from files or from the Hub."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

from pydantic import ValidationError

from rag_train.errors import UserError
from rag_train.pairs import named
from rag_train.questions.formats import COLUMNS, FORMATS, Format, Row, by_columns, in_flashrags_shape, unfold
from rag_train.retrieval.corpus import parse_json, read_json_lines
from rag_train.schema import Question

HUB = "hub:"
_Rows = Iterable[tuple[str, Row]]


class StoredQuestions(Sequence[Question]):
    """Questions that are kept as JSON, in a tenth of the memory. Each is made anew when it is read."""

    def __init__(self, questions: Iterable[Question]):
        self._lines = [question.model_dump_json().encode() for question in questions]

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Question: ...
    @overload
    def __getitem__(self, index: slice) -> list[Question]: ...
    def __getitem__(self, index: int | slice) -> Question | list[Question]:
        if isinstance(index, slice):
            return [Question.model_validate_json(line) for line in self._lines[index]]
        return Question.model_validate_json(self._lines[index])


def load_questions(
    path: str | Path, kind: str | None = None, columns: Mapping[str, str] | None = None
) -> list[Question]:
    """Load a question set; see `each_question` for the arguments and errors."""
    return list(each_question(path, kind, columns))


def each_question(
    path: str | Path, kind: str | None = None, columns: Mapping[str, str] | None = None
) -> Iterator[Question]:
    """Yield the questions of a set.

    Args:
        path: a released file (JSON, JSON Lines, CSV or TSV), a file of our own format (a `Question` as JSON per
            line), or ``hub:NAME[,CONFIG],SPLIT`` for a dataset of the Hub. 2WikiMultihopQA's ``id_aliases.json``
            beside a file adds the aliases of its answers (evaluation script v1.1).
        kind: a key of `FORMATS`; if None, recognized by the fields of the first row. The file can also have
            FlashRAG's shape (see `in_flashrags_shape`).
        columns: for a file in another format, its columns (see `by_columns`).

    Raises:
        UserError: if the file cannot be read or is empty, the format is unknown, a field is missing or malformed, a
            question has no answer, or an id occurs twice. The message names the file and the line, or the row of a
            list, counted from 1.
    """
    if kind is not None and kind not in FORMATS:
        raise UserError(f"unknown question format {kind!r}; the formats are {', '.join(FORMATS)}")
    format = by_columns(columns) if columns else None
    remedy = "correct the row or the columns"
    aliases: dict[str, list[str]] = {}
    first_seen: dict[str, str] = {}
    for number, (where, row) in enumerate(_rows(path)):
        if format is None:
            kind = kind or _recognize(row, f"{path}, {where}")
            format = in_flashrags_shape(kind, str(path)) if "golden_answers" in row else FORMATS[kind]
            remedy = f"fix the row to match the {kind} format, or remove it"
            aliases = _aliases(path) if kind == "2wikimultihopqa" else {}
        if known := aliases.get(str(row.get("answer_id"))):
            row = {"answer_aliases": known} | row
        try:
            question = _read(format, row, number)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{path}, {where}: {_problem(error)}; {remedy}") from error
        if question is None:
            continue
        if question.id in first_seen:
            raise UserError(
                f"{path}, {where}: duplicate id {question.id[:80]!r}, first at {first_seen[question.id]}; "
                "remove one of the two rows"
            )
        first_seen[question.id] = where
        yield question
    if not first_seen:
        raise UserError(f"{path}: no questions; give a file with at least one question")


def open_questions(spec: str, columns: Mapping[str, str] | None = None) -> tuple[str, list[Question]]:
    """Load the questions of ``[NAME=][KIND:]PLACE`` and return them with their name.

    The name defaults to the kind (a key of `FORMATS`) or else to the stem of the place.

    Raises UserError under the same conditions as `load_questions`.
    """
    name, rest = named("--questions", spec)
    kind, colon, place = rest.partition(":")
    if not colon or kind not in FORMATS:
        kind, place = "", rest
    name = name or kind or Path(place.removeprefix(HUB).split(",")[0]).stem
    return name, load_questions(place, kind or None, columns)


def parse_columns(text: str) -> dict[str, str]:
    """Parse columns such as ``question=q,answers=a.b``. Raises UserError if ``text`` does not have this form."""
    columns = {name: path for name, _, path in (pair.partition("=") for pair in text.split(","))}
    unknown = [name for name, path in columns.items() if name not in COLUMNS or not path]
    missing = [name for name in ("question", "answers") if name not in columns]
    if unknown or missing:
        problem = f"invalid pair for {unknown[0]!r}" if unknown else f"{missing[0]} is missing"
        raise UserError(f"--columns {text}: {problem}; give FIELD=PLACE pairs with the fields {', '.join(COLUMNS)}")
    return columns


def sample(questions: Sequence[Question], n: int, seed: int) -> list[Question]:
    """Draw ``n`` questions without replacement, and keep their order. The sample is determined by ``seed``.

    Raises UserError if there are fewer than ``n`` questions.
    """
    if not 0 <= n <= len(questions):
        raise UserError(f"cannot sample {n} of {len(questions)} questions; sample at most {len(questions)}")
    return [questions[i] for i in sorted(random.Random(seed).sample(range(len(questions)), n))]


def at_most(questions: Sequence[Question], n: int | None, seed: int) -> Sequence[Question]:
    """Return a sample of ``n`` questions, or all questions if there are at most ``n`` or ``n`` is None."""
    return questions if n is None or n >= len(questions) else sample(questions, n, seed)


def _rows(place: str | Path) -> _Rows:
    """Yield the position (for error messages) and the content of each row."""
    if str(place).startswith(HUB):
        yield from _hub_rows(str(place))
        return
    path = Path(place)
    if path.suffix in (".csv", ".tsv"):
        yield from _table_rows(path)
        return
    for where, row in _json_rows(path):
        try:
            unfolded = list(unfold(row))
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}, {where}: {_problem(error)}; download the file again") from error
        yield from ((where, question) for question in unfolded)


def _hub_rows(place: str) -> _Rows:
    """Yield the rows of a dataset of the Hub, which the datasets library downloads or has downloaded."""
    name, *config, split = place.removeprefix(HUB).split(",")
    if not name or len(config) > 1:
        raise UserError(f"{place}: not a dataset of the Hub; write {HUB}NAME,SPLIT or {HUB}NAME,CONFIG,SPLIT")
    import datasets

    try:
        rows = datasets.load_dataset(name, *config, split=split)
    except Exception as error:  # errors of datasets, of the Hub and of the network
        first = str(error).partition("\n")[0]
        raise UserError(f"{place}: {first}; check name, config and split, or give a local file") from error
    yield from ((f"row {number}", dict(row)) for number, row in enumerate(rows, 1))


def _aliases(place: str | Path) -> dict[str, list[str]]:
    """Return the aliases of 2WikiMultihopQA's answers by their id, from ``id_aliases.json`` in the same folder."""
    file = Path(place).parent / "id_aliases.json"
    if str(place).startswith(HUB) or not file.is_file():
        return {}
    try:
        return {row["Q_id"]: [*row["aliases"], *row.get("demonyms", [])] for _, row in read_json_lines(file)}
    except (KeyError, TypeError) as error:
        raise UserError(f"{file}: {_problem(error)}; download the file again") from error


def _table_rows(path: Path) -> _Rows:
    """Yield the rows of a CSV or TSV file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
            yield from ((f"line {reader.line_num}", row) for row in reader)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of a readable file") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: {error}; save the file as UTF-8 with CSV quoting") from error


def _json_rows(path: Path) -> _Rows:
    """Yield the rows of a JSON list, of JSON Lines, or of a single object that extends over several lines."""
    try:
        with path.open("rb") as file:
            head = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of a readable file") from error
    if not head.startswith(b"[") and head.partition(b"\n")[0].strip() != b"{":
        yield from ((f"line {line}", row) for line, row in read_json_lines(path))
        return
    try:
        rows = parse_json(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8; convert the file to UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: invalid JSON ({error}); download or export the file again") from error
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], 1):
        if not isinstance(row, dict):
            raise UserError(f"{path}, row {number}: not a JSON object; give one object per question")
        yield f"row {number}", row


def _recognize(row: Row, where: str) -> str:
    """Return the name of the first format whose signs ``row`` has."""
    for kind, format in FORMATS.items():
        if any(fields <= row.keys() for fields in format.signs):
            return kind
    raise UserError(
        f"{where}: no known format has the fields {', '.join(row)[:200]!r}; "
        f"convert the file or name its format: {', '.join(FORMATS)}"
    )


def _read(format: Format, row: Row, number: int) -> Question | None:
    """Convert a row to a question, with an id and the format's scoring rules."""
    if format.ids == "missing":
        row = {"id": str(number)} | row
    elif format.ids == "duplicated":
        row = row | {"id": str(number)}
    question = format.read(row)
    if question is None or format.scoring == "hotpotqa":
        return question
    return question.model_copy(update={"metadata": question.metadata | {"scoring": format.scoring}})


def _problem(error: Exception) -> str:
    """Describe an error of `Format.read`."""
    match error:
        case KeyError():
            return f"no field {error.args[0]!r}"
        case ValidationError():
            first = error.errors()[0]
            return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        case json.JSONDecodeError() | TypeError() | AttributeError() | IndexError():
            return f"malformed ({error})"
        case _:
            return str(error)
