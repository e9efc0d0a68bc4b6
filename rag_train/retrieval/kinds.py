"""The kinds of retrievers: each is declared in the module that implements it, with a decorator of this module.

The modules of this package are imported when a kind is first looked up, so that a new module needs no other change.
Therefore they import slow and optional libraries inside functions only.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, TypeVar

from rag_train import retrieval
from rag_train.errors import UserError
from rag_train.retrieval.base import Retriever

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class PlaceKind:
    """Retrievers that are named by an address or a word.

    Attributes:
        grammar: how to write such a place.
        about: what it is, for the help.
        pattern: what the whole text of such a place matches.
        open: function from the text to the retriever. If ``rag-train index`` can write into the place, the
            retriever has a method ``index_passages(passages, progress)`` that returns their number.
    """

    grammar: str
    about: str
    pattern: re.Pattern[str]
    open: Callable[[str], Retriever]


@dataclass(frozen=True)
class IndexKind:
    """Index directories of one format.

    Attributes:
        name: value of ``--kind``.
        about: what it is, for the help.
        format: value of ``format`` in the index's manifest.
        load: function from the directory to the index.
        build: function of passages, directory, a function to call with the number of passages done, and options.
            It returns the number of passages.
    """

    name: str
    about: str
    format: str
    load: Callable[[Path], Any]
    build: Callable[..., int]

    @property
    def options(self) -> dict[str, Any]:
        """The options of ``build``, which are its parameters after ``*``, with their defaults."""
        parameters = inspect.signature(self.build).parameters.values()
        return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


@dataclass(frozen=True)
class CombinationKind:
    """Retrievers that are made of others, and written like a call.

    Attributes:
        grammar: how to write it.
        about: what it is, for the help.
        most_places: most arguments after the first, which is then the only retriever; None if every argument is a
            retriever and can have a weight.
        open: function of the retriever and the texts of the other arguments; or of the list of retrievers and that
            of their weights.
    """

    grammar: str
    about: str
    most_places: int | None
    open: Callable[..., Retriever]


_PLACES: list[PlaceKind] = []
_INDEXES: dict[str, IndexKind] = {}
_COMBINATIONS: dict[str, CombinationKind] = {}


def place(grammar: str, about: str, pattern: str) -> Callable[[F], F]:
    """Declare the function that opens a kind of place; see `PlaceKind`."""

    def declare(function: F) -> F:
        _PLACES.append(PlaceKind(grammar, about, re.compile(pattern), function))
        return function

    return declare


def index_kind(name: str, about: str, format: str, load: Callable[[Path], Any]) -> Callable[[F], F]:
    """Declare the function that builds a kind of index directory; see `IndexKind`."""

    def declare(function: F) -> F:
        _INDEXES[name] = IndexKind(name, about, format, load, function)
        return function

    return declare


def combination(name: str, grammar: str, about: str, most_places: int | None = None) -> Callable[[F], F]:
    """Declare the function that opens a kind of combination; see `CombinationKind`."""

    def declare(function: F) -> F:
        _COMBINATIONS[name] = CombinationKind(grammar, about, most_places, function)
        return function

    return declare


def indexes() -> Mapping[str, IndexKind]:
    """Return the kinds of index directories by name, in order."""
    _discover()
    return dict(sorted(_INDEXES.items()))


def combinations() -> Mapping[str, CombinationKind]:
    """Return the kinds of combinations by name, in order."""
    _discover()
    return dict(sorted(_COMBINATIONS.items()))


def find_place(text: str) -> PlaceKind | None:
    """Return the kind of a place, or None for a directory.

    Raises UserError for an address of no kind.
    """
    _discover()
    for kind in _PLACES:
        if kind.pattern.fullmatch(text):
            return kind
    if "://" in text:
        raise refused(text, "unknown kind of address", f"write {', '.join(form for form, _ in _places())}")
    return None


def listing() -> Iterator[tuple[str, str]]:
    """Yield how each kind of retriever is written, and what it is."""
    _discover()
    yield "DIR", "index directory written by `rag-train index`"
    yield from _places()
    yield from ((kind.grammar, kind.about) for kind in combinations().values())


def _places() -> list[tuple[str, str]]:
    return sorted((kind.grammar, kind.about) for kind in _PLACES)


def refused(text: str, problem: str, remedy: str) -> UserError:
    """Return the error for the specification of a retriever that cannot be opened."""
    return UserError(f"retriever {text!r}: {problem}; {remedy}")


def http_address(text: str) -> str:
    """Return the HTTP address of ``KIND://...`` or ``KIND+https://...``."""
    scheme, _, rest = text.partition("://")
    transport = scheme.partition("+")[2] or "http"
    if transport not in ("http", "https"):
        raise refused(text, f"unknown transport {transport!r}", "write +http or +https")
    return f"{transport}://{rest}"


@cache
def _discover() -> None:
    for module in walk_packages(retrieval.__path__, f"{retrieval.__name__}."):
        import_module(module.name)
