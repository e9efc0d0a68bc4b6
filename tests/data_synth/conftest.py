"""Fixtures of the synthesis tests: a small world with its index, and a finished synthesis run."""

from pathlib import Path

import pytest
import yaml
from support.commands import call

from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.worlds.mini.world import World, WorldConfig, write_world


@pytest.fixture(scope="session")
def world() -> World:
    return World(WorldConfig(films=40, people=48, cities=12, countries=5))


@pytest.fixture(scope="session")
def index(world: World) -> BM25Index:
    return BM25Index.build(world.corpus())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
