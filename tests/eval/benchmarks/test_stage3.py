"""What the benchmarks of Stage III share."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rag_train.errors import UserError
from rag_train.eval.benchmarks.common import stage3_recipe
from rag_train.eval.benchmarks.stage3 import models_of, open_seed, settings_of, trained
from rag_train.eval.demo.recipe import demo_recipe
from rag_train.eval.miniworld.lab import training_questions
from rag_train.miniworld.world import World
from rag_train.training import run
from rag_train.training.checkpoints import _mark
from rag_train.training.recipe import TrainRecipe
from rag_train.training.rl.trainer import Collapsed


@pytest.mark.parametrize(
    ("split", "command"),
    [
        ("dev", "rag-train demo --seeds 0,3"),
        ("test", r"make demo-seeds SEEDS=0,3 \(python -m rag_train.eval.demo.miniworld_seeds --seeds 0,3\)"),
    ],
)
def test_says_how_missing_models_are_made(tmp_path: Path, split: str, command: str):
    with pytest.raises(UserError, match=f"no models of seed 0,3 by .*; run {command} first$"):
        models_of(tmp_path, [0, 3], split)


@pytest.mark.slow
def test_a_seed_has_as_many_questions_as_are_asked_for(
    tmp_path: Path, mini_world: World, monkeypatch: pytest.MonkeyPatch
):
    """The world has more than the demo answers: those that no stage has seen are left for training."""
    monkeypatch.setattr("rag_train.miniworld.world.World", lambda config: mini_world)
    monkeypatch.setattr("rag_train.retrieval.open.open_retriever", lambda place: None)
    (tmp_path / "demo/index").mkdir(parents=True)
    options = argparse.Namespace(work=tmp_path, split="dev", questions=640, answers=1160)
    seed = open_seed(Path("demo"), 0, options)
    used = [*itertools.chain(*training_questions(mini_world, demo_recipe())), *seed.questions]
    assert not {q.question for q in seed.training} & {q.question for q in used}
    left = options.questions = len(seed.training)
    assert left >= 640 and len(open_seed(Path("demo"), 0, options).questions) == 1160
    options.questions += 1
    with pytest.raises(UserError, match=f"^--questions {left + 1}: seed 0 has {left}; give at most that number"):
        open_seed(Path("demo"), 0, options)


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)


def test_settings_are_all_that_determines_the_results_and_no_paths():
    recipe = stage3_recipe("/models/a", Path("/somewhere"), 0.1, credit="tree")
    settings = settings_of(recipe)
    assert {"group", "temperature", "kl", "branches", "global_batch", "cold_start", "clip_high"} <= {
        *keys(settings)
    }
    text = json.dumps(settings)
    assert "/models" not in text and "/somewhere" not in text
    assert settings == settings_of(stage3_recipe("/models/b", Path("/elsewhere"), 0.5, credit="tree"))
    assert settings != settings_of(stage3_recipe("/models/a", Path("/somewhere"), 0.1, credit="tree", branches=3))


def test_a_collapsed_run_has_the_model_of_its_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = replace(stage3_recipe("m", tmp_path, 0.1), output_dir=str(tmp_path))
    assert recipe.rl and recipe.rl.collapse and recipe.rl.collapse > recipe.save_steps

    def collapse(recipe: TrainRecipe) -> None:
        raise Collapsed("step 25: all rollouts of a question get the same reward")

    merged: list[tuple[str, str, Path]] = []

    def merge(*arguments: Any) -> None:
        merged.append(arguments)
        arguments[2].mkdir()

    monkeypatch.setattr(run, "train", collapse)
    monkeypatch.setattr("rag_train.training.merge.merge", merge)
    with pytest.raises(Collapsed):
        trained(recipe)
    for step in (10, 20):
        checkpoint = tmp_path / f"checkpoints/checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "adapter_model.safetensors").write_text("weights")
        _mark(checkpoint)
    expected = tmp_path / "checkpoints/collapsed"
    assert trained(recipe) == trained(recipe) == (expected, True)
    assert merged == [("m", str(tmp_path / "checkpoints/checkpoint-20"), expected)]
    monkeypatch.setattr(run, "train", lambda recipe: None)
    assert trained(recipe) == (tmp_path, False)
