"""What the processes of a launch must have in common (output directory, recipe and inputs), and their end."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from rag_train.errors import UserError
from rag_train.progress import say

PATIENCE = 60.0
"""Seconds to wait for a file of the first process. NFS may hide a new file for some time."""


def check_processes(folder: Path, identity: Mapping[str, Any]) -> None:
    """Check that all processes of the launch see the same ``folder`` and have the same ``identity`` of their run.

    Raises UserError in all processes.
    """
    state = PartialState()
    if state.num_processes == 1:
        return
    [name] = broadcast_object_list([uuid4().hex])
    mark = folder / name
    if state.is_main_process:
        mark.touch()
    state.wait_for_everyone()
    found = gather_object([(socket.gethostname(), _appears(mark), dict(identity))])
    if state.is_main_process:
        mark.unlink()
    if blind := sorted({host for host, seen, _ in found if not seen}):
        raise UserError(
            f"output_dir {folder.parent}: {', '.join(blind)} cannot see the files of {found[0][0]} there; choose a "
            "directory on a file system that all machines share"
        )
    first, _, expected = found[0]
    for host, _, other in found:
        if differing := sorted(key for key in expected if other[key] != expected[key]):
            raise UserError(
                f"{host} and {first} differ in {', '.join(differing)}; copy the same recipe, data and model to all "
                "machines"
            )


def say_once(line: str) -> None:
    """Print a line on standard error, in the first process of the launch."""
    if PartialState().is_main_process:
        say(line)


def end_processes() -> None:
    """Close the connections between the processes of the launch; a command calls this last.

    Without it, a process that ends while another still has its connection open can be aborted by PyTorch's threads
    ("terminate called without an active exception"), which launchers report as a failure.
    """
    state = PartialState()
    state.wait_for_everyone()
    state.destroy_process_group()


def _appears(file: Path) -> bool:
    """Return whether ``file`` exists now or after a while."""
    end = time.monotonic() + PATIENCE
    while not file.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True
