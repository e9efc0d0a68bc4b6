"""A corpus of the passages that question files bring along, such as DualRAG's for 2WikiMultihopQA and MuSiQue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rag_train.errors import UserError
from rag_train.jobs.files import write_records
from rag_train.questions.fields import pairs, records
from rag_train.questions.formats import FORMATS, unfold
from rag_train.rows import Row, read_rows
from rag_train.schema import Passage


def pool(files: Sequence[Path], output: Path) -> int:
    """Write the passages of all questions, each once, to ``output`` as JSON Lines, and return their number.

    The id of a passage is its title, as in HotpotQA's and 2WikiMultihopQA's gold passages; a number follows if
    another passage has this title.

    Raises:
        UserError: if a file cannot be read, a row is malformed, or the questions of a file have no passages.
    """
    written = 0

    def counted() -> Iterator[Passage]:
        nonlocal written
        for passage in _distinct(files):
            written += 1
            yield passage

    write_records(output, counted())
    return written


def _distinct(files: Sequence[Path]) -> Iterator[Passage]:
    seen: set[tuple[str, str]] = set()
    titles: Counter[str] = Counter()
    for path in files:
        found = 0
        for where, row in read_rows(path):
            try:
                own = [each for question in unfold(row) for each in _passages(question)]
            except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
                raise UserError(f"{path}, {where}: no passages as released ({error!r}); fix the row") from error
            found += len(own)
            for title, text in own:
                if (title, text) not in seen:
                    seen.add((title, text))
                    titles[title] += 1
                    again = f"/{titles[title]}" if titles[title] > 1 or not title else ""
                    yield Passage(id=f"{title}{again}", title=title, text=text)
        if not found:
            raise UserError(
                f"{path}: its questions bring no passages; give files of HotpotQA's distractor setting, "
                "2WikiMultihopQA, MuSiQue, PopQA or SQuAD"
            )


def _passages(row: Row) -> list[tuple[str, str]]:
    """Return title and text of all passages of a question, supporting or not."""
    if FORMATS["squad"].recognizes(row):
        return [(row.get("title") or "", row["context"])]
    if row.get("context"):
        return [(title, " ".join(map(str.strip, sentences))) for title, sentences in pairs(row["context"])]
    text = "paragraph_text" if "question_decomposition" in row else "text"  # MuSiQue's, PopQA's
    return [(each["title"], each[text]) for each in records(row.get("paragraphs"))]
