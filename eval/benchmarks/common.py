"""Tools that the benchmarks share. Heavy imports wait until they are needed, so that --help answers at once."""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rag_train.errors import UserError
from rag_train.working_files import PACKAGE

if TYPE_CHECKING:
    from rag_train.llm.base import Completion, Sampling
    from rag_train.miniworld.world import World
    from rag_train.schema import Question
    from rag_train.training.recipe import TrainRecipe

CONTROLLER = PACKAGE / "miniworld/checkpoint/controller"
"""The shipped mini model after the demo's cold start, which writes DeepRAG's transcript."""
WIDTH = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 2,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}
"""Qwen2.5-7B with 2 of its 28 layers."""


def benchmark_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows ``description`` as written, with the option ``--output``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results"), help="directory of the results")
    return parser


def random_model(directory: Path, sizes: Mapping[str, Any], tokenizer: Path, dtype: str = "float32") -> Path:
    """Write a Qwen2 model of these sizes with random weights and the tokenizer of another model."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from rag_train.llm.checkpoint import load_tokenizer

    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # the large models are slow to draw on a CPU
        config: Any = Qwen2Config.from_dict(dict(sizes))
        model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(directory)
    load_tokenizer(str(tokenizer)).save_pretrained(directory)
    return directory


def seed_list(text: str) -> list[int]:
    """Return the seeds of an option such as ``--seeds 0,1``; argparse reports the error of a text without them."""
    return [int(seed) for seed in text.split(",")]


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Print a `UserError` of the block in one line and exit with code 2."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def process_memory(field: str, process: int | Literal["self"] = "self") -> int:
    """Return a field of /proc/PROCESS/status in bytes: RssAnon is memory without mapped files, VmHWM the peak.

    The peak that getrusage tells begins with that of the process that started this process.
    """
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024


class MiniWorld(NamedTuple):
    """The mini world of seed 0, the shipped controller, and the multi-hop training questions."""

    world: World
    model: Path
    questions: list[Question]


def mini_world() -> MiniWorld:
    """Return the mini world with its controller."""
    from rag_train.eval.miniworld.lab import multi_hop
    from rag_train.miniworld.world import World, WorldConfig

    world = World(WorldConfig())
    return MiniWorld(world, CONTROLLER, multi_hop(world.questions("train")))


def stage3_recipe(model: str, folder: Path, price: float, **settings: Any) -> TrainRecipe:
    """Return the recipe of Stage III in the mini world, on ``questions.jsonl`` and ``index`` in ``folder``.

    ``price`` is that of a retrieval; ``settings`` are more keys of the `RLRecipe`. Seed and ``output_dir`` are
    still to be set. Adapters are trained: with all weights, the noise of the gradient makes the mini model forget
    facts and the format. Advantages are not scaled by group: where all rollouts of a question are equally right,
    any price would otherwise count as much as any other. A call has room for six remembered steps. A run that
    collapses ends after more steps than there are between two checkpoints, so that the last checkpoint has its
    final weights.
    """
    from rag_train.training.recipe import LoraRecipe, PriceRecipe, RewardRecipe, RLRecipe, TrainRecipe

    section = RLRecipe(
        index=str(folder / "index"),
        instructions=False,
        call_tokens=160,
        scale="none",
        reward=RewardRecipe(format=0.1),
        price=PriceRecipe(retrievals=price),
        collapse=15,
        **settings,
    )
    return TrainRecipe(
        stage="rl",
        model=model,
        data=folder / "questions.jsonl",
        output_dir="",
        lr=1e-3,
        lora=LoraRecipe(r=8, alpha=16),
        epochs=1,
        schedule="constant_with_warmup",
        warmup_ratio=0.05,
        max_tokens=1024,
        batch_size=16,
        global_batch=64,
        precision="fp32",
        logging_steps=1,
        save_steps=10,
        rl=section,
    )


class Recorder:
    """An engine that records the prompt and sampling of every call and counts the tokens read and written."""

    def __init__(self, llm: Any):
        self._llm = llm
        self.calls: list[tuple[str, Sampling]] = []
        self.tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        self.calls.append((prompt, sampling))
        completion = await self._llm.complete(prompt, sampling)
        self.tokens += completion.usage.prompt_tokens + completion.usage.completion_tokens
        return completion


async def timed(work: Sequence[Coroutine[Any, Any, Any]], *, at_once: bool) -> float:
    """Run the coroutines, all at once or one after the other, and return the seconds that they take."""
    start = time.perf_counter()
    if at_once:
        await asyncio.gather(*work, return_exceptions=True)
    else:
        for coroutine in work:
            await asyncio.gather(coroutine, return_exceptions=True)
    return time.perf_counter() - start


async def empty_cache(engine: Any) -> None:
    """Empty vLLM's prefix cache; other engines have none."""
    if hasattr(engine, "reset"):
        await engine.reset()


async def batch_seconds(engine: Any, calls: Sequence[tuple[str, Sampling]]) -> float:
    """Empty the prefix cache, make all calls at once, and return the seconds that they take."""
    await empty_cache(engine)
    return await timed([engine.complete(prompt, sampling) for prompt, sampling in calls], at_once=True)


def free_port() -> int:
    """Return a TCP port that is free on the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
