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
from safetensors.torch import load_file
from support.launching import KILLED, launch
from support.training import TOKENIZER, pair, recipe_in, sft_record, write
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
    ("zero3", "packed", "full"),  # DeepRAG
    ("zero3", "tree", "full"),
    ("fsdp2", "packed", "lora"),
    ("fsdp2", "pairs", "full"),
    ("fsdp2", "tree", "full"),
]
"""Configuration, layout and trained parameters."""
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
    result, logged = json.loads((tmp_path / "two/training.json").read_text()), losses(tmp_path / "two")
    assert (result["resumed_from"], result["steps"]) == (SAVED, one.steps)
    assert {step: logged[step] for step in killed} == pytest.approx(killed, rel=1e-4)
    # DeepSpeed computes with weights in bf16, one process with weights in fp32.
    assert list(logged.values()) == pytest.approx([entry["loss"] for entry in one.losses], rel=0.08)

    survived = f"saved weights keep | {result['survived'] or 0:.1%} |" in (tmp_path / "two/README.md").read_text()
    assert one.survived is None and survived == (config.startswith("zero") and trained == "full")
    assert not survived or 0.5 < result["survived"] < 1.5  # of the update that the fp32 weights have

    before, after = (AutoModelForCausalLM.from_pretrained(tmp_path / name).float() for name in ("one", "two"))
    ids = torch.tensor(TOKENIZER("Question: Where was the maker of film 1 born?")["input_ids"])[None]
    with torch.no_grad():
        expected, logits = before(ids).logits, after(ids).logits
    assert (logits - expected).norm() < 0.1 * expected.norm()


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_zero3_evaluates_and_keeps_the_weights_of_one_process(work: Path, tmp_path: Path, stage: str):
    """In fp32, so that figures and weights are equal. dpo has trees, which do not depend on the processes."""
    pytest.importorskip("deepspeed")
    make = sft_record if stage == "sft" else pair
    held_out = write(tmp_path / "held_out.jsonl", [make(i) for i in range(100, 105)])
    keys: dict[str, Any] = {"dpo": DPORecipe(layout="tree"), "lr": 1e-3} if stage == "dpo" else {}
    keys |= {"eval_data": held_out, "eval_steps": 1, "keep": "best", "epochs": 2, "precision": "fp32"}
    recipe = recipe_in(work, tmp_path / "two", stage=stage, batch_size=2, **keys)
    single = {"gradient_accumulation": 2} if stage == "dpo" else {"batch_size": 4}
    one = train(replace(recipe, output_dir=str(tmp_path / "one"), **single))
    ended = launch("zero3", recipe, tmp_path)
    assert ended.returncode == 0, ended.stderr
    two = json.loads((tmp_path / "two/training.json").read_text())
    for name in ("loss", "rewards/margins") if stage == "dpo" else ("loss",):
        assert [e[name] for e in two["losses"]] == pytest.approx([e[name] for e in one.losses], rel=1e-3, abs=1e-5)
    assert (two["tokens_seen"], two["kept_step"]) == (one.tokens_seen, one.kept_step)
    for ours, theirs in zip(two["validation"], one.validation, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert first.keys() == second.keys()
    for name in first:
        if not name.endswith("k_proj.bias"):  # attention does not depend on it: AdamW scales up rounding error
            torch.testing.assert_close(second[name], first[name], rtol=0, atol=1e-4)
