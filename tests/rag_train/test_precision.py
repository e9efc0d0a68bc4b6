"""Number formats by what the machine computes fast."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.training import recipe_in

from rag_train import precision
from rag_train.precision import fast_dtype, has_bf16
from rag_train.recipe import load_recipe
from rag_train.training import run
from rag_train.training.recipe import TrainRecipe


@pytest.mark.parametrize(("bf16", "dtype"), [(True, "auto"), (False, "float32")])
def test_engines_avoid_bf16_where_it_is_slow(monkeypatch: pytest.MonkeyPatch, bf16: bool, dtype: str):
    monkeypatch.setattr(precision, "has_bf16", lambda: bf16)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert fast_dtype("auto") == dtype
    assert fast_dtype("bfloat16") == "bfloat16"


def test_gpus_decide_where_there_are_some(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert not has_bf16()


@pytest.mark.parametrize(("given", "bf16", "used"), [("auto", True, "bf16"), ("auto", False, "fp32")])
@pytest.mark.slow
def test_training_chooses_its_precision(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, bf16: bool, used: str
):
    monkeypatch.setattr(run, "has_bf16", lambda: bf16)
    run.train(recipe_in(work, tmp_path / "out", epochs=1, precision=given))
    assert load_recipe(TrainRecipe, tmp_path / "out/recipe.yaml").precision == used
    assert run.train(recipe_in(work, tmp_path / "out", epochs=1, precision=given)).already_finished


@pytest.mark.slow
def test_bf16_that_is_slow_is_told(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(run, "has_bf16", lambda: False)
    run.train(recipe_in(work, tmp_path / "out", epochs=1, precision="bf16"))
    assert "precision=bf16: this machine has no instructions for bf16" in capsys.readouterr().err
