"""The parts of the self-test by name, and what the test of a part results in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from rag_train.errors import UserError

if TYPE_CHECKING:
    from rag_train.selftest.work import Work

PASS, FAIL, NOT_HERE = "pass", "fail", "not possible here"
Status = Literal["pass", "fail", "not possible here"]
PARTS = "rag_train.selftest.parts"
"""Module whose import registers the parts of the self-test."""


class NotHere(Exception):
    """A part cannot be tested on this machine. The message says why."""


@dataclass(frozen=True)
class Part:
    """A part of the stack and its test.

    Attributes:
        test: tests the part, and returns what it saw in a line. It raises `NotHere` where the machine lacks
            something, and any other exception if the part is broken.
        short: whether the short form has this part.
        after: parts that have to pass before.
        process: parts of the same name here share a process; by default, a part has its own.
        limit: seconds after which the test is ended.
    """

    name: str
    test: Callable[[Work], str]
    short: bool
    after: tuple[str, ...]
    process: str
    limit: float


@dataclass(frozen=True)
class Result:
    """What the test of a part results in; ``log`` is the end of what it printed, of a failure."""

    name: str
    status: Status
    seconds: float
    detail: str
    log: str = ""


_parts: dict[str, Part] = {}


def part(
    name: str, *, short: bool = False, after: Collection[str] = (), process: str = "", limit: float = 600
) -> Callable[[Callable[[Work], str]], Callable[[Work], str]]:
    """Return a decorator that registers a function as the test of the part ``name`` (see `Part`)."""

    def register(test: Callable[[Work], str]) -> Callable[[Work], str]:
        _parts[name] = Part(name, test, short, tuple(after), process or name, limit)
        return test

    return register


def load(module: str = PARTS) -> Mapping[str, Part]:
    """Return the parts that the import of ``module`` registers, in the order of their registration."""
    import_module(module)
    return {name: each for name, each in _parts.items() if each.test.__module__.startswith(module)}


def choose(parts: Mapping[str, Part], wanted: Collection[str], short: bool) -> list[Part]:
    """Return the parts to test: all, those of the short form, or those whose name contains a wanted text.

    What they come after is tested, too. Raises UserError if no name contains the text.
    """
    names = [name for name, each in parts.items() if each.short or not short]
    for text in wanted:
        if not any(text.lower() in name.lower() for name in names):
            raise UserError(f"{text}: no part of that name; the parts are {', '.join(names)}")
    if wanted:
        names = [name for name in names if any(text.lower() in name.lower() for text in wanted)]
    chosen: set[str] = set()
    while names:
        name = names.pop()
        chosen.add(name)
        names += parts[name].after
    return [each for name, each in parts.items() if name in chosen]


def blocked(each: Part, results: Collection[Result]) -> str | None:
    """Return why ``each`` cannot be tested after these results; None if it can."""
    stopped = {result.name: result.status for result in results if result.status != PASS}
    name = next((name for name in each.after if name in stopped), None)
    if name is None:
        return None
    return f"needs {name!r}, which {'failed' if stopped[name] == FAIL else 'is not possible here'}"
