"""Specifications of retrievers: the grammar of ``--index`` and of the recipes' ``index``.

A specification is a place or a combination of specifications; `rag_train.retrieval.kinds.listing` has all kinds.

Combinations can be nested: ``rerank(rrf(indexes/bm25, indexes/dense), models/ce)``. Inside a combination, a place
that contains a comma, a parenthesis or a quotation mark is written in double quotation marks, with quotation marks
doubled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from rag_train.errors import UserError
from rag_train.retrieval.kinds import combinations

_NAME = re.compile(r"(\w+)\(")
_WEIGHT = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*\*\s*")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_PLAIN = re.compile(r'[^(),"]*[^(),"\s]')
_SPACE = re.compile(r"\s*")
_SEPARATOR = re.compile(r"[,)]")


@dataclass(frozen=True)
class Place:
    """A directory, an address, a web search, or another argument of a combination, as plain text."""

    text: str

    def __str__(self) -> str:
        plain = _PLAIN.fullmatch(self.text) and self.text == self.text.strip() and not _WEIGHT.match(self.text)
        return self.text if plain else '"' + self.text.replace('"', '""') + '"'


@dataclass(frozen=True)
class Combination:
    """A combination of specifications, such as ``rrf(A, B)``.

    Attributes:
        name: a key of `combinations`.
        arguments: at least one.
        weights: one for each argument; 1 unless specified.
    """

    name: str
    arguments: tuple[Specification, ...]
    weights: tuple[float, ...]

    def __str__(self) -> str:
        pairs = zip(self.weights, self.arguments, strict=True)
        return f"{self.name}({', '.join(f'{w!r}*{a}' if w != 1 else str(a) for w, a in pairs)})"


Specification = Place | Combination


def parse(text: str) -> Specification:
    """Parse a specification; ``str`` of the result is a specification with the same meaning.

    Raises:
        UserError: if the text is empty, or a combination is unknown or malformed.
    """
    text = text.strip()
    if _NAME.match(text) or text.startswith('"'):
        try:
            return _Parser(text).parse()
        except RecursionError as error:
            raise UserError(f"retriever {text[:80]!r}...: nested too deeply; use fewer combinations") from error
    if not text:
        raise UserError("retriever '': empty; give for example an index directory")
    return Place(text)


def split(text: str) -> list[str]:
    """Split a list of specifications at its commas, except those inside parentheses or quotation marks."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == '"'
        depth += 0 if quoted else (character == "(") - (character == ")")
        if character == "," and not quoted and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


class _Parser:
    """A recursive-descent parser with the text and a position in it."""

    def __init__(self, text: str):
        self.text = text
        self.position = 0

    def parse(self) -> Specification:
        found = self._specification()
        if self.position < len(self.text):
            self._fail("unexpected text after the end")
        return found

    def _specification(self) -> Specification:
        if name := self._match(_NAME):
            return self._combination(name[1])
        if quoted := self._match(_QUOTED):
            return Place(quoted[1].replace('""', '"'))
        if plain := self._match(_PLAIN):
            return Place(plain[0])
        self._fail("missing quotation mark" if self.text.startswith('"', self.position) else "missing argument")

    def _combination(self, name: str) -> Combination:
        if name not in combinations():
            forms = ", ".join(kind.grammar for kind in combinations().values())
            raise UserError(f"retriever {self.text!r}: unknown combination {name!r}; the combinations are {forms}")
        arguments, weights = [], []
        while True:
            self._match(_SPACE)
            weight = self._match(_WEIGHT)
            weights.append(float(weight[1]) if weight else 1.0)
            arguments.append(self._specification())
            self._match(_SPACE)
            separator = self._match(_SEPARATOR)
            if not separator:
                self._fail("missing comma or closing parenthesis", name)
            if separator[0] == ")":
                break
        most = combinations()[name].most_places
        if most is not None and not (
            1 <= len(arguments) - 1 <= most
            and all(isinstance(argument, Place) for argument in arguments[1:])
            and set(weights) == {1.0}
        ):
            self._fail(f"wrong arguments of {name}", name)
        return Combination(name, tuple(arguments), tuple(weights))

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.position)
        self.position = found.end() if found else self.position
        return found

    def _fail(self, problem: str, name: str = "rrf") -> NoReturn:
        form = combinations()[name].grammar
        raise UserError(f"retriever {self.text!r}: {problem} at character {self.position + 1}; write {form}")
