"""Results of training: adapters, separate or merged, and the model card."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from support.training import TOKENIZER, recipe_in, sft_record, write
from transformers import AutoModelForCausalLM

from rag_train.errors import UserError
from rag_train.llm.base import Completion, Sampling
from rag_train.llm.checkpoint import base_of, check_adapter, load_tokenizer
from rag_train.llm.engines import EngineConfig, open_engine
from rag_train.training.card import write_card, write_merged_card
from rag_train.training.load import load_data
from rag_train.training.merge import merge
from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe
from rag_train.training.result import TrainResult
from rag_train.training.run import train
from rag_train.worlds.mini.pretrain import PretrainConfig, build_model


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
    card = ModelCard((tmp_path / "merged/README.md").read_text())
    assert card.data.library_name == "transformers" and "lora" in card.data.tags
    assert json.loads((adapter / "training.json").read_text())["data_sha256"] in card.text

    merge(str(work / "model"), str(adapter), tmp_path / "half", dtype="bfloat16")
    half = load_file(tmp_path / "half/model.safetensors").values()
    assert {weight.dtype for weight in half} == {torch.bfloat16}


@torch.no_grad()
def margin(model: Any, rows: Any) -> float:
    """Return the mean difference of the log-probabilities of the chosen and the rejected snippets."""

    def logprob(prompt: list[int], snippet: list[int]) -> float:
        logprobs = model(torch.tensor([prompt + snippet])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return float(logprobs.gather(1, torch.tensor(snippet)[:, None]).sum())

    sides = [[logprob(row["prompt_ids"], row[side]) for side in ("chosen_ids", "rejected_ids")] for row in rows]
    return sum(chosen - rejected for chosen, rejected in sides) / len(sides)


@pytest.mark.slow
def test_a_small_update_is_kept_by_the_adapter_and_refused_by_a_merge_in_bf16(work: Path, tmp_path: Path, capsys):
    """A run that was to merge ends with the adapter; its margin is that of a merge in fp32, and bf16 has little."""
    torch.manual_seed(0)
    sizes = PretrainConfig(hidden_size=64, layers=2, heads=4, intermediate_size=128)
    build_model(sizes, TOKENIZER).bfloat16().save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    base, output = str(tmp_path / "model"), tmp_path / "out"
    keys: dict[str, Any] = {"model": base, "stage": "dpo", "lr": 1e-6, "epochs": 8, "precision": "fp32"}
    recipe = recipe_in(work, output, **keys, lora=LoraRecipe(merge=True))
    with pytest.raises(UserError, match=r"holds the adapter, .*bfloat16 keeps \d.*% of what it learned.*--dtype f"):
        train(recipe)
    assert train(recipe).already_finished and not list(output.glob("checkpoints"))
    assert ModelCard((output / "README.md").read_text()).data.library_name == "peft"

    with pytest.raises(UserError, match=r"bfloat16 keeps .*; --force merges nevertheless") as refused:
        merge(base, str(output), tmp_path / "half")
    assert str(output) in str(refused.value) and not (tmp_path / "half").exists()
    share = merge(base, str(output), tmp_path / "half", force=True)
    assert merge(base, str(output), tmp_path / "whole", dtype="float32") > 0.999
    assert f"bfloat16 keeps {share:.1%} of the adapter's update" in (tmp_path / "half/README.md").read_text()

    _, rows, _ = load_data(recipe)
    before = margin(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), rows)
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), output)
    gain = margin(adapted, rows) - before
    half, whole = (
        margin(AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32), rows) - before
        for name in ("half", "whole")
    )
    assert gain > 0 and whole == pytest.approx(gain, rel=0.02)
    assert share < 0.9 and half / gain == pytest.approx(share, abs=0.05)  # what is measured is what is lost


TIED: list[dict[str, Any]] = [
    {"target_modules": ["lm_head"]},
    {"target_modules": ["embed_tokens"]},
    {"target_modules": ["embed_tokens", "lm_head", "q_proj"]},
    {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    {"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
    {"target_modules": ["q_proj"], "trainable_token_indices": [5, 6]},
    {"target_modules": ["q_proj"], "use_dora": True},
]


@pytest.mark.parametrize("keys", TIED, ids=str)
def test_a_model_with_tied_embeddings_stays_the_model_that_was_trained(work: Path, tmp_path: Path, keys: dict):
    base = AutoModelForCausalLM.from_pretrained(work / "model")
    assert base.get_output_embeddings().weight is base.get_input_embeddings().weight
    adapted: Any = get_peft_model(base, LoraConfig(r=4, init_lora_weights=False, **keys))
    for name, weight in adapted.named_parameters():
        if weight.requires_grad and "lora" not in name:
            weight.data += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    adapted.eval().save_pretrained(str(tmp_path / "adapter"))
    ids = torch.arange(40)[None]
    with torch.no_grad():
        expected = adapted(ids).logits
        merge(str(work / "model"), str(tmp_path / "adapter"), tmp_path / "merged")
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
        torch.testing.assert_close(merged(ids).logits, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["pairs", "tree"])
def test_stage_two_goes_on_with_the_adapter_of_stage_one(work: Path, tmp_path: Path, runs: Path, layout: Any):
    """The reference is the policy of Stage I, so that the first loss is that of equal policies."""
    start = runs / "adapter"
    keys: dict[str, Any] = {"stage": "dpo", "model": str(start), "precision": "fp32", "lr": 1e-3, "batch_size": 8}
    recipe = recipe_in(work, tmp_path / "out", **keys, lora=LoraRecipe(r=2), dpo=DPORecipe(layout=layout))
    for lora, problem in (
        (None, r"is an adapter; set lora\.r=2 to go on training it, or merge"),
        (LoraRecipe(r=4), r"lora\.r=4: .* is an adapter with 2, which training goes on with; set lora\.r=2"),
        (LoraRecipe(r=2, target_modules=["q_proj"]), r"set lora\.target_modules=\[down_proj,.*\], or merge"),
    ):
        with pytest.raises(UserError, match=problem):
            train(replace(recipe, lora=lora))
    result = train(recipe)
    assert result.losses[0]["loss"] == pytest.approx(math.log(2), abs=1e-3)
    assert result.losses[-1]["rewards/margins"] > 0
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(work / "model") and not (tmp_path / "out/ref").exists()
    first, second = (load_file(path / "adapter_model.safetensors") for path in (start, tmp_path / "out"))
    assert first.keys() == second.keys()
    moved = max((second[name] - first[name]).abs().max() for name in first)
    assert 0 < moved < 0.02  # from where Stage I ended
    assert recipe_in(work, tmp_path / "out").model in (tmp_path / "out/README.md").read_text()


def test_a_finished_run_is_not_repeated_and_another_one_is_refused_its_directory(work: Path, runs: Path):
    recipe = recipe_in(work, runs / "adapter", lora=LoraRecipe(r=2))
    result = TrainResult(**json.loads((runs / "adapter/training.json").read_text()))
    assert train(recipe) == replace(result, already_finished=True)
    differing = r"differs in lr \(was 0.01, is 0.1\), sft.weight \(was 'token', is 'example'\); choose another"
    with pytest.raises(UserError, match=differing):
        train(replace(recipe, lr=0.1, sft=SFTRecipe(weight="example")))


def test_an_adapter_directory_is_served_as_a_model(runs: Path, work: Path):
    prompt, sampling = "Question: Where was the maker of film 1 born?", Sampling(max_tokens=8, logprobs=1)

    async def written(place: str, adapter: str | None = None) -> Completion:
        async with open_engine(place, EngineConfig(kind="transformers", dtype="float32")) as engine:
            return await engine.complete(prompt, replace(sampling, adapter=adapter))

    base, adapter = str(work / "model"), str(runs / "adapter")
    expected, got, plain = (asyncio.run(written(*each)) for each in ((base, adapter), (adapter,), (base,)))
    assert got == expected and got.logprobs != plain.logprobs


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "names no base model; write its place as base_model_name_or_path"),
        ({"base_model_name_or_path": "runs/no/model"}, "its base model runs/no/model is not here; write its place"),
        ({"base_model_name_or_path": "."}, r"its base model \. is an adapter itself; merge that one first"),
    ],
)
def test_an_adapter_without_its_base_is_refused(tmp_path: Path, monkeypatch, config: dict, problem: str):
    monkeypatch.chdir(tmp_path)
    Path("adapter_config.json").write_text(json.dumps({"r": 2} | config))
    with pytest.raises(UserError, match=problem):
        base_of(".")


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LoraRecipe(r=2, merge=True)])
def test_a_model_whose_generation_settings_cannot_be_saved_is_trained(work: Path, tmp_path: Path, lora: Any):
    shutil.copytree(work / "model", tmp_path / "model")
    settings = {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [7, 8]}
    (tmp_path / "model/generation_config.json").write_text(json.dumps(settings))
    train(recipe_in(work, tmp_path / "out", model=str(tmp_path / "model"), epochs=1, lora=lora))
    saved = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert 7 in saved["eos_token_id"] and "temperature" not in saved


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
    model = build_model(PretrainConfig(**sizes), TOKENIZER)
    other = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
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


def test_card_says_what_was_learned(work: Path, runs: Path, tmp_path: Path):
    """A planner's card called it a controller of DeepRAG."""
    result = TrainResult(**json.loads((runs / "adapter/training.json").read_text()))
    plans = [sft_record(i).model_copy(update={"task": task}) for i, task in enumerate(["planrag_plan", "router"])]
    planner = recipe_in(work, runs / "adapter", data=write(tmp_path / "plans.jsonl", plans))
    write_card(tmp_path, planner, result)
    text = (tmp_path / "README.md").read_text()
    assert "on examples of `planrag_plan`, `router`, from" in text and "DeepRAG" not in text
    assert "controller for retrieval-augmented generation (DeepRAG" in (runs / "adapter/README.md").read_text()


def test_card_names_hub_model_that_earlier_stages_started_from(work: Path, runs: Path, tmp_path: Path):
    recipe = recipe_in(work, runs / "model", model="Qwen/Qwen2.5-7B-Instruct")
    result = TrainResult(**json.loads((runs / "model/training.json").read_text()) | {"data": {}})
    (tmp_path / "second").mkdir()
    write_card(tmp_path, recipe, result)
    assert ModelCard((tmp_path / "README.md").read_text()).data.base_model == recipe.model
    write_card(tmp_path / "second", replace(recipe, model=str(tmp_path)), result)
    assert ModelCard((tmp_path / "second" / "README.md").read_text()).data.base_model == recipe.model
    write_merged_card(tmp_path, recipe.model, tmp_path / "without a card", "bfloat16", 1.0)
    data = ModelCard((tmp_path / "README.md").read_text()).data
    assert (data.base_model, data.base_model_relation) == (recipe.model, "finetune")
