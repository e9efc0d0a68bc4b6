"""The benchmark of trainings on a GPU, on the CPU with tiny models."""

from __future__ import annotations

from pathlib import Path

import pytest

from rag_train.eval.benchmarks import gpu
from rag_train.eval.benchmarks.harness import CONTROLLER
from rag_train.model_presets import Preset
from rag_train.training.measure import random_model
from rag_train.training.recipe import SFTRecipe


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.argv", ["gpu"])
    with pytest.raises(SystemExit) as stopped:
        gpu.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: no GPU was found")


@pytest.mark.slow
def test_a_training_is_measured_beside_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "EXAMPLES", 8)
    monkeypatch.setattr(gpu, "TRAJECTORIES", 2)
    data = gpu.examples(tmp_path)
    tiny = Preset("none/none", "qwen2", 64, 2, 128, 4, 2, 16, 4000)
    random_model(tmp_path / "tiny", tiny.configuration(), CONTROLLER, "bfloat16")
    for keys in (gpu.PACKED | {"sft": SFTRecipe(pack_tokens=1024)}, gpu.TREE | gpu.ADAPTERS):
        found = gpu.measure(gpu.recipe(tmp_path / "tiny", data, keys))
        assert found["steps"] and found["seconds"] and found["tokens_per_second"] and found["planned_memory"]
        assert found["share"] is None and found["memory"] is None  # of a GPU
    for model, keys in gpu.TRAININGS.values():
        assert model in gpu.MODELS and gpu.recipe(tmp_path / model, data, keys).epochs == 2
