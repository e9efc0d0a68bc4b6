"""Results of training: adapters, separate or merged, and the model card."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from support.training import TOKENIZER, recipe_in, sft_record, write
from transformers import AutoModelForCausalLM

from rag_train.errors import UserError
from rag_train.llm.checkpoint import check_adapter, load_tokenizer
from rag_train.miniworld.pretrain import PretrainConfig, build_model
from rag_train.training.card import write_card, write_merged_card
from rag_train.training.merge import merge
from rag_train.training.recipe import LoraRecipe
from rag_train.training.result import TrainResult
from rag_train.training.run import train


@pytest.fixture(scope="module")
def runs(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the same training as adapters (adapter/) and merged into the model (model/)."""
    path = tmp_path_factory.mktemp("runs")
    recipe = recipe_in(work, path / "adapter", lora=LoraRecipe(r=2))
    train(recipe)
    train(replace(recipe, output_dir=str(path / "model"), lora=LoraRecipe(r=2, merge=True)))
    return path


@pytest.mark.slow
def test_merged_adapter_equals_model_merged_by_training(work: Path, runs: Path, tmp_path: Path):
    adapter = runs / "adapter"
    assert check_adapter(str(adapter)) == 2
    assert not (adapter / "config.json").exists() and not (adapter / "model.safetensors").exists()
    merge(str(work / "model"), str(adapter), tmp_path / "merged")
    expected, got = (load_file(path / "model.safetensors") for path in (runs / "model", tmp_path / "merged"))
    base = load_file(work / "model" / "model.safetensors")
    assert got.keys() == expected.keys() == base.keys() and "lm_head.weight" not in got  # tied to the embeddings
    assert all(torch.equal(got[name], expected[name]) for name in got)
    assert any(not torch.equal(got[name], base[name]) for name in got)

    ids = torch.arange(40)[None]
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    both = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(work / "model"), str(adapter))
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, both(ids).logits, rtol=1e-4, atol=1e-5)
    assert load_tokenizer(str(tmp_path / "merged")).get_vocab() == TOKENIZER.get_vocab()

    merge(str(work / "model"), str(adapter), tmp_path / "half", dtype="bfloat16")
    assert {weight.dtype for weight in load_file(tmp_path / "half" / "model.safetensors").values()} == {
        torch.bfloat16
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64}, "does not fit model .*size mismatch.*; give the model that it was trained on"),
        ({"layers": 2}, r"does not fit model .*\d+ weights are in only one of them, such as base_model"),
        ({"targets": ["c_attn"]}, "does not fit model .*Target modules .*c_attn.* not found"),
        ({"dtype": "int8"}, "--dtype int8: unknown; give auto, bfloat16, float16, float32"),
        ({"output": "."}, "already exists; choose another directory"),
    ],
)
def test_failed_merge_leaves_no_files(work: Path, tmp_path: Path, changes: dict, message: str):
    output = tmp_path / "out" / changes.pop("output", "merged")
    dtype, targets = changes.pop("dtype", "auto"), changes.pop("targets", ["q_proj"])
    sizes = {"hidden_size": 32, "layers": 1, "heads": 2, "intermediate_size": 64} | changes
    other = get_peft_model(
        build_model(PretrainConfig(**sizes), TOKENIZER), LoraConfig(r=2, target_modules=["q_proj"])
    )
    other.save_pretrained(str(tmp_path / "adapter"))
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(config.read_text().replace('"q_proj"', f'"{targets[0]}"'))
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=message):
        merge(str(work / "model"), str(tmp_path / "adapter"), output, dtype)
    assert list((tmp_path / "out").iterdir()) == []


def test_card_states_data_weights_metrics_and_recipe(work: Path, runs: Path):
    for name, library in (("model", "transformers"), ("adapter", "peft")):
        text = (runs / name / "README.md").read_text()
        card = ModelCard(text)
        assert card.data.to_dict() == {
            "library_name": library,
            "pipeline_tag": "text-generation",
            "tags": ["rag-train", "retrieval-augmented-generation", "sft", "lora"],
        }
        result = yaml.safe_load((runs / name / "training.json").read_text())
        assert f"| data, SHA-256 | `{result['data_sha256']}` |\n| starting weights" in text
        assert f"| loss | {result['losses'][0]['loss']:.4g} | {result['losses'][-1]['loss']:.4g} |\n" in text
        recipe = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
        assert recipe == yaml.safe_load((runs / name / "recipe.yaml").read_text())
        assert ("--lora-modules" in text) == (name == "adapter")


def test_merged_model_has_a_card(work: Path, runs: Path, tmp_path: Path):
    merge(str(work / "model"), str(runs / "adapter"), tmp_path / "merged")
    card = ModelCard((tmp_path / "merged/README.md").read_text())
    assert card.data.library_name == "transformers" and "lora" in card.data.tags
    assert json.loads((runs / "adapter/training.json").read_text())["data_sha256"] in card.text
    write_merged_card(tmp_path, "Qwen/Qwen2.5-7B-Instruct", tmp_path / "without a card")
    data = ModelCard((tmp_path / "README.md").read_text()).data
    assert (data.base_model, data.base_model_relation) == ("Qwen/Qwen2.5-7B-Instruct", "finetune")


def test_card_says_what_was_learned(work: Path, runs: Path, tmp_path: Path):
    """U5: a planner's card called it a controller of DeepRAG."""
    result = TrainResult(**json.loads((runs / "adapter/training.json").read_text()))
    examples = [
        sft_record(i).model_copy(update={"task": task}) for i, task in enumerate(["planrag_plan", "router"])
    ]
    planner = recipe_in(work, runs / "adapter", data=write(tmp_path / "plans.jsonl", examples))
    write_card(tmp_path, planner, result)
    text = (tmp_path / "README.md").read_text()
    assert "on examples of `planrag_plan`, `router`, from" in text and "DeepRAG" not in text
    assert "controller for retrieval-augmented generation (DeepRAG" in (runs / "adapter/README.md").read_text()


def test_card_names_hub_model_that_earlier_stages_started_from(work: Path, runs: Path, tmp_path: Path):
    recipe = recipe_in(work, runs / "model", model="Qwen/Qwen2.5-7B-Instruct")
    result = replace(train(recipe_in(work, runs / "model", lora=LoraRecipe(r=2))), data={})
    (tmp_path / "second").mkdir()
    write_card(tmp_path, recipe, result)
    assert ModelCard((tmp_path / "README.md").read_text()).data.base_model == recipe.model
    write_card(tmp_path / "second", replace(recipe, model=str(tmp_path)), result)
    assert ModelCard((tmp_path / "second" / "README.md").read_text()).data.base_model == recipe.model
