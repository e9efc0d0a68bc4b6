"""Synthesis on a Ray cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import call

from rag_train.data_synth.cluster import gpus_of
from rag_train.data_synth.methods.deeprag import DeepRAGRecipe
from rag_train.data_synth.modules.method import GoldRecipe
from rag_train.recipe import load_recipe


@pytest.mark.parametrize(
    ("overrides", "gpus"),
    [
        ([], 1),
        (["engine.tensor_parallel=2"], 2),
        (["engine.kind=transformers"], 1),
        (["engine.kind=openai", "engine.urls=[http://127.0.0.1:1]"], 0),
        (["engine.kind=chat", "engine.urls=[http://127.0.0.1:1]"], 0),
    ],
)
def test_a_shard_takes_the_gpus_of_its_engine(tmp_path: Path, overrides: list[str], gpus: int):
    path = tmp_path / "recipe.yaml"
    path.write_text("stage: sft\nquestions: []\nindex: x\nmodel: m\noutput: out.jsonl\n")
    assert gpus_of(load_recipe(DeepRAGRecipe, path, overrides)) == gpus


def test_gold_data_take_no_gpu(tmp_path: Path):
    path = tmp_path / "recipe.yaml"
    path.write_text("questions: []\nindex: x\noutput: out.jsonl\n")
    assert gpus_of(load_recipe(GoldRecipe, path, [])) == 0


@pytest.mark.release
@pytest.mark.slow
def test_ray_writes_the_same_files_as_one_process(made: Path, capsys):
    pytest.importorskip("ray")
    recipe = str(made / "gold.yaml")
    before = {path.name: path.read_bytes() for path in made.glob("gold.jsonl*")}
    for name in before:
        (made / name).unlink()
    assert call("synth", "levelrag", recipe, "--ray", "2") == 0
    assert {path.name: path.read_bytes() for path in made.glob("gold.jsonl*")} == before
    assert call("synth", "levelrag", recipe, "--ray", "2", "--shard", "1/2") == 2
    assert "--shard and --ray exclude each other" in capsys.readouterr().err
