"""Rollouts that are made while the model trains: an event loop in a thread of its own, and what was begun there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter
from torch.utils.data import Sampler
from trl.trainer.utils import RepeatSampler

from rag_train.jobs.files import write_text
from rag_train.training.rl.rollouts import Rollout

T = TypeVar("T")


class Background:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._thread = Thread(target=self._run, args=[device], daemon=True)
        self._thread.start()

    def _run(self, device: int | None) -> None:
        if device is not None:
            torch.cuda.set_device(device)  # a thread begins with the first GPU; NCCL uses the current one
        self._loop.run_forever()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin ``work``."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Begin ``work`` and wait for its result."""
        return self.begin(work).result()

    def close(self) -> None:
        """End the thread; what is unfinished is cancelled."""
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Foreseen(Sampler[int]):
    """A sampler whose order is known at the beginning of an epoch, and depends on the number of the epoch alone.

    TRL's sampler draws its orders one after another, so that a resumed run would begin with the first epoch's.
    """

    def __init__(self, sampler: RepeatSampler, epoch: Callable[[], int]):
        """``epoch`` returns the number of the epoch that begins."""
        self._sampler = sampler
        self._epoch = epoch
        self.order: list[int] = []

    def __iter__(self) -> Iterator[int]:
        self._sampler.generator.manual_seed((self._sampler.seed or 0) + self._epoch())
        self.order = list(self._sampler)
        return iter(self.order)

    def __len__(self) -> int:
        return len(self._sampler)


@dataclass
class Begun:
    """The rollouts of ``prompts``, made or still in the making."""

    prompts: list[str]
    made: Future[list[Rollout]]

    def save(self, file: Path) -> None:
        """Wait for the rollouts, and write them to ``file``."""
        write_text(file, _FILE.dump_json((self.prompts, self.made.result())).decode())

    @classmethod
    def load(cls, file: Path) -> Begun:
        """Read what `save` has written."""
        prompts, rollouts = _FILE.validate_json(file.read_bytes())
        made: Future[list[Rollout]] = Future()
        made.set_result(rollouts)
        return cls(prompts, made)


_FILE: TypeAdapter[tuple[list[str], list[Rollout]]] = TypeAdapter(tuple[list[str], list[Rollout]])
