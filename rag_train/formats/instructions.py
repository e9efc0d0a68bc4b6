"""The instructions of methods and their modules: the files of ``prompts/``, or a user's files in their place.

    # <source>                               (lines that begin with "# ", at the top, are no part of the prompt)
    # Fields: question, knowledge, thought
    <text>

A text without fields is an instruction: a blank line follows in the prompt, and the fields in labelled lines
(`rag_train.formats.tasks`). A user's text with fields, such as ``{question}``, is the whole prompt: the values take
their places and nothing follows, not even the beginning of the reply. All other braces stand for themselves.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rag_train.errors import UserError
from rag_train.package_files import copy_files, packaged

LINES = "lines"
"""The field of labelled lines whose number is not fixed, such as the sub-questions so far."""
_FIELD = re.compile(r"\{([a-z_]+)\}")
_HEAD = re.compile(r"(?:# .*\n)*")
_DECLARED = re.compile(r"# Fields: (.+)")


@dataclass(frozen=True)
class Instruction:
    """The instruction of a method or module.

    Attributes:
        name: name of its file without the ending.
        text: the text without the lines at the top.
        fields: the fields that a user's text may have; empty if a transcript follows, which has to stay behind it.
        own: whether the text is a user's.
    """

    name: str
    text: str
    fields: tuple[str, ...] = ()
    own: bool = False

    @property
    def whole(self) -> bool:
        """Whether the text is the whole prompt."""
        return self.own and bool(_FIELD.search(self.text))

    def filled(self, values: Mapping[str, str]) -> str:
        """Return the text with the values of its fields; a field without a value is empty."""
        return _FIELD.sub(lambda match: values.get(match[1], ""), self.text)


class Instructions(Mapping[str, Instruction]):
    """The instructions by name: ours, with a user's files in place of those that have the same names."""

    def __init__(self, folder: str | Path | None = None):
        """Read the files. Raises UserError if ``folder`` or a file in it cannot be used."""
        self._all = {path.stem: _read(path) for path in sorted(packaged("prompts").glob("*.txt"))}
        for path in sorted(_files(Path(folder))) if folder is not None else ():
            self._all[path.stem] = self._own(path)

    def __getitem__(self, name: str) -> Instruction:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __hash__(self) -> int:
        return hash(tuple(self._all.values()))

    def _own(self, path: Path) -> Instruction:
        if path.suffix != ".txt" or path.stem not in self._all:
            raise UserError(f"{path}: no prompt has this file's name; {self._nearest(path)}")
        ours = self._all[path.stem]
        text = _read(path).text
        if not text:
            raise UserError(f"{path}: no text below the lines that begin with '# '; write one or remove the file")
        used = dict.fromkeys(_FIELD.findall(text))
        if unknown := [name for name in used if name not in ours.fields]:
            known = "it has " + _listed(ours.fields) if ours.fields else "its text has no fields"
            near = difflib.get_close_matches(unknown[0], ours.fields, n=1)
            remedy = f"did you mean {{{near[0]}}}?" if near else "for braces that are text, put spaces in them"
            raise UserError(f"{path}: {{{unknown[0]}}} is no field of this prompt ({known}); {remedy}")
        if used and (missing := [name for name in ours.fields if name not in used]):
            raise UserError(
                f"{path}: without {_listed(missing)}; a text with fields is the whole prompt: add them, or "
                "use no fields, and they follow the text in labelled lines"
            )
        return replace(ours, text=text, own=text != ours.text)

    def _nearest(self, path: Path) -> str:
        near = difflib.get_close_matches(path.stem, self._all, n=1)
        return f"did you mean {near[0]}.txt?" if near else "remove it; `rag-train prompts` lists the names"


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such directory of prompts; `rag-train prompts --copy {folder}` makes one")
    return (path for path in folder.iterdir() if not path.name.startswith("."))


def _read(path: Path) -> Instruction:
    """Read a file. Raises UserError if it is no file of UTF-8 text."""
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; make it a file that can be read, or remove it") from error
    head = _HEAD.match(f"{content}\n")
    assert head
    declared = _DECLARED.search(head[0])
    fields = tuple(declared[1].split(", ")) if declared else ()
    return Instruction(path.stem, content[head.end() :].strip(), fields)


def _listed(fields: Iterable[str]) -> str:
    return ", ".join(f"{{{field}}}" for field in fields)


OURS = Instructions()
"""The instructions of ``prompts/``."""


def copied(names: Iterable[str], folder: Path) -> list[Path]:
    """Copy files of ``prompts/`` into ``folder``. Raises UserError if a file exists or cannot be written."""
    copies = [folder / f"{name}.txt" for name in names]
    copy_files([packaged("prompts") / copy.name for copy in copies], copies)
    return copies


Given = Instructions | Literal[False]
"""The instructions that prompts begin with; False for models that were trained without instructions."""


def given(where: str, instructions: bool, folder: str | Path | None) -> Given:
    """Return ours or, with a folder of a user's files, those; False without ``instructions``.

    Raises UserError, which begins with ``where`` the folder is named, if the files cannot be used, or are not used
    because there are no instructions.
    """
    if folder and not instructions:
        raise UserError(
            f"{where} {folder}: not used without instructions; leave the directory out or switch them on"
        )
    try:
        return instructions and (Instructions(folder) if folder else OURS)
    except UserError as error:
        raise UserError(f"{where} {error}") from error
