"""Fixtures of the synthesis tests: the command line, a small world with its index, and a finished synthesis run."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rag_train.cli.app import main
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.worlds.mini.world import World, WorldConfig, write_world


@pytest.fixture(scope="session")
def call() -> Callable[..., int | str | None]:
    """Run `rag-train` with arguments; return its exit code."""

    def run(*arguments: str) -> int | str | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["rag-train", *arguments])
            with pytest.raises(SystemExit) as end:
                main()
        return end.value.code

    return run


@pytest.fixture(scope="session")
def world() -> World:
    return World(WorldConfig(films=40, people=48, cities=12, countries=5))


@pytest.fixture(scope="session")
def index(world: World) -> BM25Index:
    return BM25Index.build(world.corpus())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, call) -> Path:
    """A directory with a small world, its index, a recipe, and LevelRAG's examples from it."""
    folder = tmp_path_factory.mktemp("made")
    write_world(World(WorldConfig(films=20, people=20, cities=4, countries=2)), folder / "world")
    recipe = {
        "questions": [str(folder / "world/train.jsonl")],
        "index": str(folder / "index"),
        "output": str(folder / "gold.jsonl"),
        "sample": 30,
    }
    (folder / "gold.yaml").write_text(yaml.safe_dump(recipe))
    assert call("index", str(folder / "world/corpus.jsonl"), str(folder / "index")) == 0
    assert call("synth", "levelrag", str(folder / "gold.yaml")) == 0
    return folder
