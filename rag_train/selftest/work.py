"""What the parts of the self-test work with: a folder, the commands of rag-train, and training examples."""

from __future__ import annotations

import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rag_train.jobs.files import write_records
from rag_train.package_files import packaged
from rag_train.schema import Decision, PreferencePair, Question, SFTRecord, Step

CONTROLLER = packaged("worlds/mini/checkpoint/controller")
"""The small model of the package, which writes DeepRAG's transcript about the mini world."""
EXAMPLES = 80
"""Questions of which training examples are made."""


class CommandError(Exception):
    """A command ended with an error. The message is the last line that it printed."""


class Work:
    """The folder that all parts share, with what each of them may use."""

    def __init__(self, folder: Path):
        self.folder = folder

    def command(self, *arguments: Any, launcher: Sequence[str] = (), **environment: str) -> str:
        """Run ``rag-train ARGUMENTS`` and return what it printed; ``launcher`` are options of `accelerate launch`.

        Raises CommandError if it ends with an error.
        """
        command = ["-m", "rag_train.cli", *map(str, arguments)]
        if launcher:
            command = ["-m", "accelerate.commands.launch", *launcher, *command]
        print("$ python", *command, flush=True)
        lines = []
        with subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line.strip())
        if process.returncode:
            raise CommandError(f"rag-train {arguments[0]}: {_reason(lines) or f'code {process.returncode}'}")
        return "\n".join(lines)

    def train(self, name: str, *keys: str, launcher: Sequence[str] = (), **environment: str) -> dict[str, Any]:
        """Run a training with the recipe ``name`` of the package, and return its result.

        Raises AssertionError if a step is missing or a loss is not a number.
        """
        command = ["train", packaged(f"recipes/{name}.yaml"), *keys, "--json"]
        printed = self.command(*command, launcher=launcher, **environment).splitlines()
        result = json.loads(next(line for line in reversed(printed) if line.startswith("{")))
        losses = [entry["loss"] for entry in result["losses"]]
        assert len(losses) == result["steps"], f"{result['steps']} steps, but {len(losses)} losses"
        assert all(map(math.isfinite, losses)), f"the losses are {losses}"
        return result

    @cached_property
    def gpus(self) -> int:
        """Number of GPUs that PyTorch sees."""
        import torch

        return torch.cuda.device_count()

    @property
    def engine(self) -> dict[str, Any]:
        """Settings of vLLM for the small model."""
        return {"gpu_memory": 0.3} if self.gpus else {"extra": {"kv_cache_memory_bytes": 2**29}}

    def examples(self, stage: str) -> Path:
        """Return the file of training examples of a stage, sft or dpo, which is made if it is not there."""
        path = self.folder / f"{stage}.jsonl"
        if not path.exists():
            made = _pairs if stage == "dpo" else _sft
            write_records(path, [record for question in _questions() for record in made(question)])
        return path


def _reason(lines: Sequence[str]) -> str:
    """Return the line of a command's output that says why it failed."""
    for sign in (r"error: ", r"[\w.]*(Error|Exception)\b", r"."):
        if found := next((line for line in reversed(lines) if re.match(sign, line)), None):
            return found
    return ""


def _questions() -> list[Question]:
    from rag_train.worlds.mini.world import World, WorldConfig

    several = [each for each in World(WorldConfig()).questions("train") if (each.hops or 0) > 1]
    return several[:EXAMPLES]


def _steps(question: Question) -> list[Step]:
    """Return the gold decomposition with decisions drawn at random."""
    draw, passages = random.Random(question.id), {passage.id: passage for passage in question.gold_passages}
    steps = []
    for gold in question.decomposition:
        found = [passages[id] for id in gold.passage_ids if id in passages]
        retrieve = bool(found) and draw.random() < 0.6
        decision = Decision.RETRIEVE if retrieve else Decision.PARAMETRIC
        steps.append(Step(subquery=gold.subquery, decision=decision, passages=found * retrieve, answer=gold.answer))
    return steps


def _sft(question: Question) -> Iterator[SFTRecord]:
    from rag_train.formats import deeprag

    steps = _steps(question)
    segments = deeprag.render(steps, question.answers[0])
    yield SFTRecord(
        id=question.id,
        prompt=deeprag.question_prompt(question.question),
        completion="".join(segment.text for segment in segments),
        segments=segments,
        steps=steps,
        answer=question.answers[0],
        retrievals=sum(step.decision is Decision.RETRIEVE for step in steps),
        source="gold",
    )


def _pairs(question: Question) -> Iterator[PreferencePair]:
    from rag_train.formats import deeprag

    steps, start = _steps(question), deeprag.question_prompt(question.question)
    for number, step in enumerate(steps):
        other = Decision.PARAMETRIC if step.decision is Decision.RETRIEVE else Decision.RETRIEVE
        yield PreferencePair(
            id=f"{question.id}/{number}",
            prompt=start + deeprag.text_of(steps[:number]) + deeprag.subquery_line(step.subquery),
            chosen=deeprag.decision_snippet(step.decision),
            rejected=deeprag.decision_snippet(other),
            history_start=len(start),
            node=number,
        )
