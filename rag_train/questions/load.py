"""Loading of question sets from files or from the Hub."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast, get_args, overload

from pydantic import ValidationError

from rag_train.answers import UNANSWERABLE
from rag_train.errors import UserError, problem_in
from rag_train.named_places import named
from rag_train.progress import say
from rag_train.questions.fields import NoAnswers
from rag_train.questions.formats import COLUMNS, FORMATS, Format, by_columns, dataset_named, unfold
from rag_train.rows import Row, read_json_lines, read_rows
from rag_train.schema import Question

HUB = "hub:"
_Rows = Iterable[tuple[str, Row]]
Unanswerable = Literal["skip", "abstain"]
"""What becomes of questions without an answer: they are left out, or a refusal to answer is right."""
_OTHER_FIELDS = "or name its fields with --columns question=...,answers=..."


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
    path: str | Path,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
    unanswerable: Unanswerable | None = None,
) -> list[Question]:
    """Load a question set; see `each_question` for the arguments and errors."""
    return list(each_question(path, kind, columns, unanswerable))


def each_question(
    path: str | Path,
    kind: str | None = None,
    columns: Mapping[str, str] | None = None,
    unanswerable: Unanswerable | None = None,
    everything: list[Question] | None = None,
) -> Iterator[Question]:
    """Yield the questions of a set, and say at the end how many have no answer.

    Args:
        path: a released file or one's own (see `rag_train.rows.read_rows` and `FORMATS`), or
            ``hub:NAME[,CONFIG],SPLIT`` for a dataset of the Hub. 2WikiMultihopQA's ``id_aliases.json`` beside a
            file adds the aliases of its answers (evaluation script v1.1).
        kind: a key of `FORMATS`; if None, recognized by the fields of the first row. The file can also have a shape
            that several datasets share, such as FlashRAG's; the kind then says how answers are compared.
        columns: for a file in another format, its columns (see `by_columns`).
        unanswerable: what becomes of the questions that the dataset marks as unanswerable; None refuses them.
        everything: gets all questions, also those that are left out.

    Raises:
        UserError: if the file cannot be read or is empty, the format is unknown, a field is missing or malformed, a
            question has no answer, or an id occurs twice. The message names the file and the line, or the row of a
            list, counted from 1.
    """
    if kind is not None and kind not in FORMATS:
        raise UserError(f"unknown question format {kind!r}; the formats are {', '.join(FORMATS)}")
    chosen = FORMATS[kind] if kind else None
    format = by_columns(columns) if columns else None
    remedy = "correct the row or the columns"
    aliases: dict[str, list[str]] = {}
    first_seen: dict[str, str] = {}
    without_answer = 0
    for number, (where, row) in enumerate(_rows(path)):
        if format is None:
            name = _recognize(row, kind, f"{path}, {where}")
            format = FORMATS[name]
            remedy = f"fix the row to match the {name} format, remove it, {_OTHER_FIELDS}"
            aliases = _aliases(path) if name == "2wikimultihopqa" else {}
        if known := aliases.get(str(row.get("answer_id"))):
            row = {"answer_aliases": known} | row
        dataset = chosen or (_dataset(row, str(path)) if format.shared else None) or format
        try:
            question = _read(format, dataset, row, number)
        except NoAnswers as error:
            raise UserError(f"{path}, {where}: {error}; give a split with answers, such as dev or train") from error
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{path}, {where}: {_problem(error)}; {remedy}") from error
        if not dataset.keep(question):
            continue
        if question.id in first_seen:
            raise UserError(
                f"{path}, {where}: duplicate id {question.id[:80]!r}, first at {first_seen[question.id]}; "
                "remove one of the two rows"
            )
        first_seen[question.id] = where
        if everything is not None:
            everything.append(question)
        if question.metadata.get("scoring") == UNANSWERABLE:
            if unanswerable is None:
                raise UserError(
                    f"{path}, {where}: the question is marked as unanswerable; leave such questions out with "
                    "--unanswerable skip, or score refusals to answer as right with --unanswerable abstain"
                )
            without_answer += 1
            if unanswerable == "skip":
                continue
        yield question
    if len(first_seen) == (without_answer if unanswerable == "skip" else 0):
        problem = "no questions" if not first_seen else "all questions are marked as unanswerable"
        raise UserError(f"{path}: {problem}; give a file with at least one question")
    if without_answer:
        told = {"skip": "left out", "abstain": "scored: a refusal to answer is right"}[unanswerable or "skip"]
        questions = f"unanswerable question{'s' * (without_answer > 1)}"
        say(f"{path}: {without_answer:,} {questions} {told}")


def open_questions(
    spec: str,
    columns: Mapping[str, str] | None = None,
    unanswerable: str | None = None,
    everything: list[Question] | None = None,
) -> tuple[str, list[Question]]:
    """Load the questions of ``[NAME=][KIND:]PLACE`` as `each_question` does, and return them with their name.

    The name defaults to the kind (a key of `FORMATS`) or else to the stem of the place.

    Raises UserError under the same conditions as `load_questions`, or if ``unanswerable`` is unknown.
    """
    if unanswerable not in (None, *get_args(Unanswerable)):
        raise UserError(f"--unanswerable {unanswerable}: unknown; give {' or '.join(get_args(Unanswerable))}")
    name, rest = named("--questions", spec)
    kind, colon, place = rest.partition(":")
    if not colon or kind not in FORMATS:
        kind, place = "", rest
    name = name or kind or Path(place.removeprefix(HUB).split(",")[0]).name.partition(".")[0]
    choice = cast(Unanswerable | None, unanswerable)
    return name, list(each_question(place, kind or None, columns, choice, everything))


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
    for where, row in read_rows(path):
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


def _recognize(row: Row, kind: str | None, where: str) -> str:
    """Return the name of the row's format: ``kind``, if it is given, or a shape that several datasets share."""
    if kind is not None and FORMATS[kind].recognizes(row):
        return kind
    for name, format in FORMATS.items():
        if format.recognizes(row) and (kind is None or format.shared):
            return name
    if kind is not None:
        return kind
    if not any(word in field.lower() for field in map(str, row) for word in ("answer", "output", "target", "gold")):
        raise UserError(
            f"{where}: no field of answers among {', '.join(map(str, row))[:200]!r}: test splits have none; give a "
            "split with answers, or name the fields with --columns question=...,answers=..."
        )
    raise UserError(
        f"{where}: no known format has the fields {', '.join(map(str, row))[:200]!r}; name the fields with "
        f"--columns question=...,answers=..., convert the file, or name its format: {', '.join(FORMATS)}"
    )


def _dataset(row: Row, place: str) -> Format | None:
    """Return the format of the dataset that the row names (Search-R1, DPR), or else its file; None if none does."""
    for name in (row.get("data_source"), row.get("dataset"), place):
        if isinstance(name, str) and (format := dataset_named(name)):
            return format
    return None


def _read(format: Format, dataset: Format, row: Row, number: int) -> Question:
    """Convert a row to a question, with an id, and with the rules by which its dataset compares answers."""
    if format.ids == "missing":
        row = {"id": str(number)} | row
    elif format.ids == "duplicated":
        row = row | {"id": str(number)}
    question = format.read(row)
    rules = {} if dataset.scoring == "hotpotqa" else {"scoring": dataset.scoring}
    rules |= {"long_form": True} if dataset.long_form else {}
    return question.model_copy(update={"metadata": rules | question.metadata}) if rules else question


def _problem(error: Exception) -> str:
    """Describe an error of `Format.read`."""
    match error:
        case KeyError():
            return f"no field {error.args[0]!r}"
        case ValidationError():
            return problem_in(error)
        case TypeError() | AttributeError() | IndexError():
            return f"malformed ({error})"
        case _:
            return str(error)
