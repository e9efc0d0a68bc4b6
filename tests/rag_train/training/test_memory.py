"""The memory estimate: exact parameter counts, and a total near the measured memory."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from peft import get_peft_model
from support.paths import MODEL
from support.training import pair, recipe_in, sft_record, write
from transformers import AutoModelForCausalLM, Qwen2Config

from rag_train.eval.benchmarks.memory import HEADS, compared
from rag_train.model_presets import PRESETS
from rag_train.training.load import prepare_libraries
from rag_train.training.measure import random_model
from rag_train.training.memory import Sharding, architecture, estimate
from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe, TrainRecipe
from rag_train.training.setup import lora_config


def test_counts_parameters_from_configuration_alone(work: Path, tmp_path: Path):
    Qwen2Config(**PRESETS["qwen2.5-7b"].configuration()).save_pretrained(tmp_path)
    qwen = architecture(str(tmp_path))
    assert qwen.parameters == 7_615_616_512 and qwen.trained(None) == qwen.parameters
    assert qwen.trained(LoraRecipe(r=16)) == 40_370_176

    small = AutoModelForCausalLM.from_pretrained(work / "model")
    counted = architecture(str(work / "model"))
    assert counted.parameters == small.num_parameters()
    recipe = recipe_in(work, tmp_path / "out", lora=LoraRecipe(r=3, target_modules=["q_proj", "down_proj"]))
    adapted = get_peft_model(small, lora_config(recipe))
    assert counted.trained(recipe.lora) == adapted.get_nb_trainable_parameters()[0]


def test_sizes_of_states_match_zero_paper(work: Path, tmp_path: Path):
    """Figure 1 of Rajbhandari et al. 2020: 7.5B parameters on 64 GPUs take 120, 31.4 (stage 1, which we do not
    configure), 16.6 and 1.9 GB. Our estimate adds two layers that are gathered at a time."""
    model = replace(architecture(str(work / "model")), parameters=7_500_000_000, layers=28)
    recipe = recipe_in(work, tmp_path / "out", batch_size=1)

    def states(recipe: TrainRecipe, sharding: Sharding) -> float:
        memory = estimate(recipe, model, sharding, 1, 1)
        return (memory.weights + memory.gradients + memory.optimizer) / 1e9

    assert states(recipe, Sharding(2, 64, deepspeed=True)) == pytest.approx(16.6, abs=0.05)
    gathered = 2 * 2 * 7.5 / 28
    assert states(recipe, Sharding(3, 64, deepspeed=True)) == pytest.approx(1.9 + gathered, abs=0.05)
    assert states(recipe, Sharding(0, 1, deepspeed=True)) == pytest.approx(120)
    assert states(replace(recipe, precision="fp32"), Sharding()) == pytest.approx(120)
    offloaded = Sharding(3, 64, deepspeed=True, offload_optimizer=True, offload_weights=True)
    assert states(recipe, offloaded) == pytest.approx(gathered)


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"sft": SFTRecipe(pack_tokens=1024), "batch_size": 1},
    {"stage": "dpo", "dpo": DPORecipe(layout="tree"), "batch_size": 8},
]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc on this system")
@pytest.mark.slow
@pytest.mark.parametrize("keys", LAYOUTS, ids=["padded", "packed", "trees"])
def test_estimate_is_near_measured_memory(tmp_path: Path, keys: dict[str, Any]):
    """Ten shapes are measured by `make bench NAME=memory`."""
    sizes = {"vocab_size": 2048, "hidden_size": 384, "num_hidden_layers": 4, "intermediate_size": 1152}
    random_model(tmp_path / "model", HEADS | sizes, MODEL)
    data = {"sft": write(tmp_path / "sft.jsonl", [sft_record(i) for i in range(8)])}
    data["dpo"] = write(tmp_path / "dpo.jsonl", [pair(i) for i in range(8)])
    found = compared(tmp_path / "model", keys, data, tmp_path)
    assert 0.5 < found["estimate"] / found["measured"] < 2


@pytest.mark.parametrize("own", [None, "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_memory_segments_grow_unless_the_user_has_set_the_allocator(own: str | None, monkeypatch):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv(own, "backend:cudaMallocAsync")
    prepare_libraries()
    kept = {None: "expandable_segments:True", "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}
    assert os.environ.get("PYTORCH_ALLOC_CONF") == kept.get(own)
