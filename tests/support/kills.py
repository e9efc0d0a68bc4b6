"""Kills of work between any two changes of files."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

KILL_POINTS = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")
"""Functions of `os` that change or secure files; a build is killed before and after each call of them."""


class _Killed(BaseException):
    """Ends a build like a kill: the code under attack does not catch it."""


def killed(work: Callable[[], object], point: int) -> bool:
    """Kill ``work`` at a point: 2n is before, 2n + 1 after the n-th call of `KILL_POINTS`.

    From then on every call fails, as a dead process does nothing. Returns whether there was such a point.
    """
    calls = 0

    def deadly(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if point <= 2 * (calls - 1):
                raise _Killed
            done = real(*arguments, **options)
            if point < 2 * calls:
                raise _Killed
            return done

        return call

    try:
        with ExitStack() as patches:
            for name in KILL_POINTS:
                patches.enter_context(patch.object(os, name, deadly(name)))
            work()
    except _Killed:
        return True
    return False
