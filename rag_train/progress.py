"""Progress bars on standard error, with rate and remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Task as RichTask
from rich.text import Text

console = Console(stderr=True, highlight=False)
EVERY = 60.0
"""Seconds between two lines where there is no terminal for a bar, such as in the log of a batch job."""


def say(line: str) -> None:
    """Print a line on standard error as it is, in one line however long it is."""
    console.print(line, markup=False, emoji=False, soft_wrap=True)


class _Rate(ProgressColumn):
    """The speed of a task, in steps per second or seconds per step."""

    def render(self, task: RichTask) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if not speed else f"{speed:,.1f}/s" if speed >= 1 else f"{1 / speed:,.1f} s each")


@contextmanager
def progress(label: str, total: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """Show a progress bar, of which ``done`` steps are already completed.

    Yields a function ``advance(steps=1, note=None)`` that moves the bar and sets the note at its end. If standard
    error is not a terminal, a line without the bar is printed every minute, and one with it at the end.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[note]}"),
    )
    bar = Progress(*columns, console=console)
    task = bar.add_task(label, total=total, completed=done, note="")
    printed = time.monotonic()

    def advance(steps: int = 1, note: str | None = None) -> None:
        nonlocal printed
        bar.advance(task, steps)
        if note is not None:
            bar.update(task, note=note)
        if not console.is_terminal and time.monotonic() - printed >= EVERY and not bar.finished:
            printed = time.monotonic()
            *shown, end = (column(bar.tasks[0]) for column in columns if not isinstance(column, BarColumn))
            console.print(*shown, "left", end, soft_wrap=True)

    bar.start()
    try:
        yield advance
    except BaseException:  # only the error message is shown, not the unfinished bar
        bar.live.transient, console.quiet = True, not console.is_interactive
        raise
    finally:
        bar.stop()
        console.quiet = False


def up_to(advance: Callable[..., None]) -> Callable[[int], None]:
    """Return a callback that takes the total number of completed steps and moves the bar there."""
    reached = 0

    def move(done: int) -> None:
        nonlocal reached
        advance(done - reached)
        reached = done

    return move
