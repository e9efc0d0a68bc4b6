"""Progress bars with rate and time left, on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Task as RichTask
from rich.text import Text

console = Console(stderr=True, highlight=False)


class _Rate(ProgressColumn):
    def render(self, task: RichTask) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if not speed else f"{speed:,.1f}/s" if speed >= 1 else f"{1 / speed:,.1f} s each")


@contextmanager
def progress(label: str, total: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """Yields ``advance(steps=1, note="")``. Where standard error is no terminal, one line is printed at the end."""
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

    def advance(steps: int = 1, note: str | None = None) -> None:
        bar.advance(task, steps)
        if note is not None:
            bar.update(task, note=note)

    bar.start()
    try:
        yield advance
    except BaseException:  # the error is all there is to say
        bar.live.transient, console.quiet = True, not console.is_interactive
        raise
    finally:
        bar.stop()
        console.quiet = False


def up_to(advance: Callable[..., None]) -> Callable[[int], None]:
    """For callbacks that are told how much has been done in all: moves the bar there."""
    reached = 0

    def move(done: int) -> None:
        nonlocal reached
        advance(done - reached)
        reached = done

    return move
