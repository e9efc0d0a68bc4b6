"""Corpora: readers for the common file formats, and a store of encoded passages.

Every error in a file is a UserError of one line with the file, the line or row, the problem and the remedy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json

from rag_train.answers import composed
from rag_train.errors import UserError
from rag_train.progress import say
from rag_train.rows import Row, read_rows
from rag_train.schema import Passage


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """Yield the passages of a corpus file in their order, reading JSON Lines and tables line by line.

    The file can be JSON Lines, a JSON list, a table (CSV or TSV with a header, such as DPR's ``psgs_w100.tsv``) or
    Parquet, also compressed (``.gz``, ``.zst``, ``.bz2``). A row has ``id`` (or ``_id``, ``docid``), ``text`` and
    optionally ``title``, as in BEIR; or ``contents``, as in FlashRAG, whose first line is the title, also in
    quotation marks. If there is a ``title``, too, the first line is left out only where it repeats the title. A
    list of sentences is one text. A page of KILT's knowledge source gives one passage for each paragraph, with the
    id ``page/paragraph``.

    Rows whose title and text are both blank are left out, and a line at the end says how many. All ids are kept in
    memory to detect duplicates, about 100 bytes each.

    Raises:
        UserError: if a line is not UTF-8, is malformed, has no id or no text, or repeats an id; or if the file is
            missing or has no passage.
    """
    path = Path(path)
    first_seen: dict[str, str] = {}
    blank = 0
    for where, row in read_rows(path):
        try:
            passages = _passages(row)
        except ValueError as error:
            raise UserError(f"{path}, {where}: {error}; correct or remove the row") from error
        blank += not passages
        for passage in passages:
            if passage.id in first_seen:
                raise UserError(
                    f"{path}, {where}: duplicate id {passage.id[:80]!r}, first on {first_seen[passage.id]}; "
                    "give every passage a unique id"
                )
            first_seen[passage.id] = where
            yield passage
    if not first_seen:
        raise UserError(f"corpus {path}: empty; give a file with one passage per line")
    if blank:
        say(f"{path}: {blank:,} row{'s' * (blank > 1)} without text left out")


class PassageStore:
    """Passages by position: a file of JSON Lines, and the start of each line. Only the offsets take memory.

    The file is not mapped: each read would map 16 pages that stay in memory.

    Args:
        path: the JSON Lines.
        offsets: int64, of shape (passages + 1,); the last offset is the size of the file.
    """

    def __init__(self, path: Path, offsets: np.ndarray):
        self._file = path.open("rb")
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> Passage:
        return self.found([position], [None])[0]

    def found(self, positions: Sequence[int], scores: Sequence[float | None]) -> list[Passage]:
        """Return the passages at ``positions`` with their scores."""
        at = np.asarray(positions, dtype=np.int64)
        starts, ends = (self.offsets[at + next].tolist() for next in (0, 1))
        passages = []
        for position, start, end, score in zip(positions, starts, ends, scores, strict=True):
            line = os.pread(self._file.fileno(), end - start, start)
            try:
                passages.append(Passage(**from_json(line), score=score))
            except (TypeError, ValueError) as error:
                raise UserError(f"passage {position} of the index is damaged; build the index again") from error
        return passages


def encode(passage: Passage) -> bytes:
    """Return the line of a passage in a `PassageStore`."""
    return passage.model_dump_json(include={"id", "title", "text"}).encode() + b"\n"


def encodable(text: str) -> str:
    """Return the text as indexes and services get it: in Unicode's form NFC, which is how most texts are written,
    and with question marks for halves of surrogate pairs, which UTF-8 cannot encode."""
    return composed(text.encode("utf-8", "replace").decode())


def _passages(row: Row) -> list[Passage]:
    """Return the passages of a row: one, several of a page of KILT's, or none if the row is blank."""
    id = next((row[key] for key in ("id", "_id", "docid", "wikipedia_id") if row.get(key) is not None), None)
    if isinstance(id, bool) or not isinstance(id, str | int) or id == "":
        raise ValueError("no id (a string or a whole number under 'id', '_id' or 'docid')")
    title = row.get("title") or ""
    title = str(title) if isinstance(title, int) else title
    if not isinstance(title, str):
        raise ValueError("the title is not a string")
    if "wikipedia_title" in row:
        return _kilt_page(str(id), row)
    if isinstance(contents := row.get("contents"), str) and "text" not in row:
        title, text = _divided(contents, title)
    elif "text" in row:
        text = row["text"] or ""
        text = " ".join(map(str.strip, text)) if _is_texts(text) else text
    else:
        raise ValueError("no text (a string under 'text' or 'contents')")
    if not isinstance(text, str):
        raise ValueError("no text (a string under 'text' or 'contents')")
    return [Passage(id=str(id), title=title, text=text)] if text.strip() or title.strip() else []


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _divided(contents: str, title: str) -> tuple[str, str]:
    """Return title and text of FlashRAG's ``contents``; ``title`` is that of the row, if it has one."""
    first, newline, rest = contents.partition("\n")
    first = first.strip()
    unquoted = first[1:-1] if len(first) > 1 and first[0] == first[-1] == '"' else first
    if not newline or (title.strip() and composed(title).strip() not in (composed(first), composed(unquoted))):
        return title, contents
    return title or unquoted, rest


def _kilt_page(id: str, row: Row) -> list[Passage]:
    """Return the paragraphs of a Wikipedia page without its title and headings; the id has the paragraph's number.

    KILT's provenance names a page and the numbers of its paragraphs.
    """
    page, title, text = str(row.get("wikipedia_id") or id), row["wikipedia_title"], row.get("text")
    text = text.get("paragraph") if isinstance(text, dict) else text  # the Hub's record of lists
    if not isinstance(title, str) or not isinstance(text, list) or not _is_texts(text):
        raise ValueError("not a page of KILT's (a title and a list of paragraphs)")
    paragraphs = ((number, " ".join(paragraph.split())) for number, paragraph in enumerate(text))
    return [
        Passage(id=f"{page}/{number}", title=title, text=paragraph.removeprefix("BULLET::::- "))
        for number, paragraph in paragraphs
        if paragraph and not paragraph.startswith("Section::::") and (number > 0 or paragraph != title)
    ]
