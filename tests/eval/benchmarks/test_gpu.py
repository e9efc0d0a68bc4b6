"""The benchmark of trainings on a GPU, on the CPU with tiny models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rag_train.eval.benchmarks import gpu
from rag_train.training.recipe import SFTRecipe


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["gpu"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="error: no GPU was found"):
        gpu.main()


@pytest.mark.slow
def test_a_training_is_measured_beside_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "EXAMPLES", 8)
    monkeypatch.setattr(gpu, "TRAJECTORIES", 2)
    data = gpu.examples(tmp_path)
    tiny = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    gpu.build(gpu.SHARED | tiny | {"num_key_value_heads": 2, "vocab_size": 4000}, tmp_path / "tiny")
    for keys in (gpu.PACKED | {"sft": SFTRecipe(pack_tokens=1024)}, gpu.TREE | gpu.ADAPTERS):
        found = gpu.measure(gpu.recipe(tmp_path / "tiny", data, keys), tmp_path / "run")
        assert found["steps"] and found["seconds"] and found["tokens_per_second"] and found["planned_memory"]
        assert found["share"] is None and found["memory"] is None  # of a GPU
    for model, keys in gpu.TRAININGS.values():
        assert model in gpu.MODELS and gpu.recipe(tmp_path / model, data, keys).epochs == 2
