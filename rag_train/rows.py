"""Rows of files as people have them: JSON, JSON Lines, CSV, TSV and Parquet, compressed or not.

Every error in a file is a UserError of one line with the file, the place in it, the problem and the remedy.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from rag_train.errors import UserError

Row = dict[str, Any]

_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
"""Compressions by the bytes that a file begins with."""
_PARQUET, _ZIP = b"PAR1", b"PK\x03\x04"
_TABLE = re.compile(r"\.[ct]sv(\.(gz|zstd?|bz2))?$")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NO_SPACE = re.compile(r"\S|\Z")
_SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab"}


def read_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the place ("line 3", or "row 3" of a list) and the fields of each row of a file.

    The contents decide the format, whatever the file's name: Parquet, a JSON list, JSON objects one after the other
    (JSON Lines, or over several lines each), compressed with gzip, Zstandard or bzip2 or not, in UTF-8 or UTF-16.
    A file whose name ends with ``.csv`` or ``.tsv`` (before ``.gz`` and the like) is a table with a header; commas,
    tabs or semicolons separate its fields. Columns without a name, such as pandas' index, are left out. A table of
    DPR's, with a question and a list of answers in each line, has no header.

    Raises UserError if the file cannot be read, or if a row is malformed.
    """
    with opened(path) as file:
        head = file.peek(4)[:4]
    if head == _PARQUET:
        return _parquet_rows(path)
    if head == _ZIP:
        raise UserError(f"{path}: a ZIP archive or a spreadsheet; unpack it, or export the sheet as CSV")
    if _TABLE.search(path.name.lower()):
        return _table_rows(path)
    return _json_rows(path)


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading its bytes, decompressed. Raises UserError if it cannot be read, in the block, too."""
    try:
        with path.open("rb") as file:
            start = file.peek(4)
            codec = next((name for magic, name in _COMPRESSED.items() if start.startswith(magic)), None)
            if codec is None:
                yield file
                return
            import pyarrow

            with pyarrow.CompressedInputStream(file, codec) as stream:
                yield io.BufferedReader(stream)
    except OSError as error:
        if error.strerror is None:  # pyarrow's, of a compressed stream
            raise UserError(f"cannot read {path}: damaged ({error}); download or compress it again") from error
        raise UserError(f"cannot read {path}: {error.strerror}; give the path of a readable file") from error


def count_lines(path: str | Path) -> int:
    """Return the number of lines of a file, or of rows of a Parquet file, for progress bars.

    Raises:
        UserError: if the file cannot be read.
    """
    with opened(Path(path)) as file:
        if file.peek(4)[:4] == _PARQUET:
            return _parquet(Path(path)).metadata.num_rows
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))


def read_json_lines(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield (line number, object) for each line that is not blank; numbers start at 1.

    Raises:
        UserError: if the file cannot be read, or if a line is not UTF-8 or not a JSON object.
    """
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = _checked(line, json.loads(line, **_STRICT))
        except DuplicateKey as error:
            raise UserError(f"{path}, line {number}: {error}; remove one of the two") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: invalid JSON ({error}); write one object per line") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: not a JSON object; write one object per line")
        yield number, row


def parse_json(text: str) -> Any:
    """Parse JSON; NaN, which pandas writes for missing values, is read as null.

    Raises:
        ValueError: if the text is not JSON or contains half of a surrogate pair, which cannot be written as UTF-8.
        RecursionError: if the value is nested too deeply.
    """
    return _checked(text, json.loads(text, parse_constant=lambda _: None))


class DuplicateKey(ValueError):
    """A JSON object has the same key twice; Python's parser would silently keep the last."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        seen: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise DuplicateKey(f"duplicate key {duplicate[:80]!r}")
    return row


_STRICT: dict[str, Any] = {"parse_constant": lambda _: None, "object_pairs_hook": _unique_keys}
"""Options of the parser of files."""


def _checked(text: str, value: Any) -> Any:
    """Return ``value``, parsed from ``text``. Raises ValueError if it has half of a surrogate pair."""
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def written_value(text: str) -> Any:
    """Return the list or object that ``text`` writes, as JSON or as Python or NumPy print it; other text as it is.

    Cells of tables, and columns of datasets on the Hub, have lists in this form.
    """
    stripped = text.strip()
    if not (stripped.startswith("[") and stripped.endswith("]")) and not (
        stripped.startswith("{") and stripped.endswith("}")
    ):
        return text
    try:
        return parse_json(stripped)
    except (ValueError, RecursionError):
        pass
    try:
        tokens = [t for t in tokenize.generate_tokens(io.StringIO(stripped).readline) if t.type != tokenize.NL]
        if any(a.type == b.type == tokenize.STRING for a, b in pairwise(tokens)):  # NumPy writes no commas
            return [ast.literal_eval(token.string) for token in tokens if token.type == tokenize.STRING]
        return ast.literal_eval(_Arrays().visit(ast.parse(stripped, mode="eval")))
    except (ValueError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError):
        return text


class _Arrays(ast.NodeTransformer):
    """Replaces NumPy's arrays by their lists: pandas writes records with arrays into tables."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if isinstance(node.func, ast.Name) and node.func.id == "array" and node.args else node


def _lines(path: Path) -> Iterator[str]:
    """Yield the decoded lines of a file, with their ends."""
    number = 0
    try:
        with opened(path) as file:
            if file.peek(2).startswith(_UTF16):
                yield from io.TextIOWrapper(file, encoding="utf-16", newline="\n")
                return
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeError as error:
        raise UserError(f"{path}, line {number}: not UTF-8; convert the file to UTF-8") from error


def _json_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of JSON Lines one by one, and of any other JSON file after reading all of it."""
    first = next((line for line in _lines(path) if line.strip()), "")
    try:
        by_line = not first.lstrip().startswith("[") and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        by_line = not first  # else a value over several lines, or one that is broken
    if by_line:
        yield from ((f"line {number}", row) for number, row in read_json_lines(path))
        return
    text = "".join(_lines(path))
    try:
        values = list(_values(text))
    except DuplicateKey as error:
        raise UserError(f"{path}: {error}; remove one of the two") from error
    except (ValueError, RecursionError) as error:
        problem = f"{path}: invalid JSON ({error})"
        raise UserError(f"{problem}; write a list of objects, or one object per line") from error
    rows = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UserError(f"{path}, row {number}: not a JSON object; give one object per row")
        yield f"row {number}", row


def _values(text: str) -> Iterator[Any]:
    """Yield the JSON values that follow each other in ``text``."""
    decoder = json.JSONDecoder(**_STRICT)
    at = 0
    while (found := _NO_SPACE.search(text, at)) and (at := found.start()) < len(text):
        value, end = decoder.raw_decode(text, at)
        yield _checked(text[at:end], value)
        at = end


def _table_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a CSV or TSV file."""
    lines = _lines(path)
    first = next(lines, "")
    separator = "\t" if "\t" in first else ";" if first.count(";") > first.count(",") else ","
    # strict: an unclosed quotation mark is an error; otherwise one row would contain the rest of the file
    reader = csv.reader(chain([first], lines), delimiter=separator, strict=True)
    _, tab, answers = first.partition("\t")
    try:
        header = ["question", "answers"] if tab and isinstance(written_value(answers), list) else next(reader, [])
        if repeated := next((name for name in header if name and header.count(name) > 1), None):
            problem = f"two columns are called {repeated[:80]!r}"
            raise UserError(f"{path}, line 1: {problem}; rename or remove one of the two")
        for fields in reader:
            if fields and len(fields) != len(header):
                remedy = f"write each text that contains {_SEPARATORS[separator]} in quotation marks"
                raise UserError(
                    f"{path}, line {reader.line_num}: {len(fields)} fields, but the header has {len(header)}; "
                    f"{remedy if len(fields) > len(header) else 'give every row all fields, also empty ones'}"
                )
            if fields:
                named = zip(header, fields, strict=True)
                yield f"line {reader.line_num}", {name: field for name, field in named if name}
    except csv.Error as error:
        problem = f"{path}, line {reader.line_num}: {error}"
        raise UserError(f"{problem}; quote texts as in CSV, with quotation marks doubled") from error


def _parquet(path: Path) -> Any:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error}); download it again") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Row]]:
    with _parquet(path) as file:
        rows = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(1000))
        yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))
