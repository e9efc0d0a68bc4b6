"""The memory estimate: exact parameter counts, and a total near the measured memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from peft import get_peft_model
from support.training import TOKENIZER, recipe_in, sft_record, write
from transformers import AutoModelForCausalLM, Qwen2Config

from rag_train.training.data import sft_rows
from rag_train.training.epoch import epoch
from rag_train.training.memory import Sharding, architecture, estimate
from rag_train.training.recipe import LoraRecipe, TrainRecipe
from rag_train.training.setup import lora_config

QWEN_7B = {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
QWEN_7B |= {"num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False}


def test_counts_parameters_from_configuration_alone(work: Path, tmp_path: Path):
    Qwen2Config(**QWEN_7B).save_pretrained(tmp_path)
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


MEASURE = """
import sys
from pathlib import Path
import psutil
from rag_train.recipe import load_recipe
from rag_train.training.recipe import TrainRecipe
from rag_train.training.run import train
small, large = (load_recipe(TrainRecipe, path) for path in sys.argv[1:])
train(small)  # imports all libraries
before = psutil.Process().memory_info().rss
train(large)
# getrusage is not used, because a process inherits the peak of the process that started it.
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
print(peak * 1024 - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc on this system")
@pytest.mark.slow
def test_estimate_is_near_measured_memory(tmp_path: Path):
    """Compares the estimate without ``RUNTIME`` with the increase in peak resident memory after a minimal run."""
    from transformers import Qwen2ForCausalLM

    from rag_train.recipe import save_recipe
    from rag_train.training.memory import RUNTIME

    sizes = {"vocab_size": 2000, "hidden_size": 384, "num_hidden_layers": 4, "intermediate_size": 1152}
    config = Qwen2Config(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    write(tmp_path / "large.jsonl", [sft_record(i) for i in range(8)])
    write(tmp_path / "small.jsonl", [sft_record(0)])
    for name in ("small", "large"):
        recipe = recipe_in(tmp_path, tmp_path / name, data=tmp_path / f"{name}.jsonl", batch_size=4, epochs=1)
        recipe = replace(recipe, precision="fp32")
        save_recipe(recipe, tmp_path / f"{name}.yaml")
    rows, _ = sft_rows(tmp_path / "large.jsonl", TOKENIZER, max_tokens=4096, chat=False)
    memory = estimate(recipe, architecture(recipe.model), Sharding(), *epoch(recipe, rows).largest)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path / "small.yaml", tmp_path / "large.yaml"],
        env=os.environ
        | {"OMP_NUM_THREADS": "1"}
        | {"MALLOC_MMAP_THRESHOLD_": "65536"},  # return freed memory to the system
        check=True,
        capture_output=True,
        text=True,
    )
    measured = json.loads(done.stdout)
    assert 0.5 < (memory.total - RUNTIME) / measured < 2
