"""The launch configurations on two CPU processes, as the recipes use them: bf16 with gradient checkpointing, every
layout, all parameters and adapters, killed and continued.

The losses are those of one process, and a run continues with the losses that it had when it was killed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.launching import KILLED, launch
from support.training import TOKENIZER, recipe_in
from transformers import AutoModelForCausalLM

from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe
from rag_train.training.run import train

LAYOUTS: dict[str, dict[str, Any]] = {
    "padded": {"stage": "sft", "global_batch": 2, "batch_size": 1},
    "packed": {"stage": "sft", "global_batch": 2, "batch_size": 1, "sft": SFTRecipe(pack_tokens=300)},
    "pairs": {"stage": "dpo", "global_batch": 4, "batch_size": 2, "dpo": DPORecipe(layout="pairs")},
    "tree": {"stage": "dpo", "global_batch": 4, "batch_size": 2, "dpo": DPORecipe(layout="tree")},
}
COMBINATIONS = [
    ("ddp", "padded", "lora"),  # HANRAG, PlanRAG
    ("zero2", "packed", "full"),
    ("zero2", "pairs", "lora"),
    ("zero3", "padded", "full"),  # DualRAG, CoT*
    ("zero3", "pairs", "full"),
    ("zero3", "packed", "lora"),
    ("zero3", "tree", "lora"),  # DeepRAG with lora.r=16
    ("fsdp2", "packed", "lora"),
    ("fsdp2", "pairs", "full"),
    ("fsdp2", "tree", "full"),
]
"""Configuration, layout and trained parameters; `test_zero3` has ZeRO-3 with DeepRAG's other two."""
SAVED = 3


def losses(output: Path) -> dict[int, float]:
    """Return the loss of each logged step."""
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize(("config", "layout", "trained"), COMBINATIONS, ids=map("-".join, COMBINATIONS))
def test_two_processes_train_and_continue_as_one(
    work: Path, tmp_path: Path, config: str, layout: str, trained: str
):
    if config.startswith("zero"):
        pytest.importorskip("deepspeed")
    keys = LAYOUTS[layout] | {"lora": LoraRecipe(r=4) if trained == "lora" else None}
    keys |= {"epochs": 4, "lr": 1e-3, "save_steps": SAVED, "gradient_checkpointing": True}
    recipe = recipe_in(work, tmp_path / "two", **keys)
    one = train(replace(recipe, output_dir=str(tmp_path / "one")))

    launch(config, recipe, tmp_path, kill=True)
    killed = losses(tmp_path / "two")
    assert list(killed) == list(range(1, KILLED))
    ended = launch(config, recipe, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert f"two: continues from step {SAVED}" in ended.stderr
    result, logged = json.loads((tmp_path / "two" / "training.json").read_text()), losses(tmp_path / "two")
    assert (result["resumed_from"], result["steps"]) == (SAVED, one.steps)
    assert {step: logged[step] for step in killed} == pytest.approx(killed, rel=1e-4)
    # DeepSpeed computes with weights in bf16, one process with weights in fp32.
    assert list(logged.values()) == pytest.approx([entry["loss"] for entry in one.losses], rel=0.08)

    before, after = (AutoModelForCausalLM.from_pretrained(tmp_path / name).float() for name in ("one", "two"))
    ids = torch.tensor(TOKENIZER("Question: Where was the maker of film 1 born?")["input_ids"])[None]
    with torch.no_grad():
        expected, logits = before(ids).logits, after(ids).logits
    assert (logits - expected).norm() < 0.1 * expected.norm()
