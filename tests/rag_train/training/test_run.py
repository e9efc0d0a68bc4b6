"""Training runs on a model of a few thousand parameters: masks, learning, kill and resume, errors."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.paths import MODEL
from support.training import (
    TOKENIZER,
    build_tokenizer,
    kill_at,
    pair,
    recipe_in,
    same_weights,
    sft_record,
    stretches,
    write,
)

from rag_train.errors import UserError
from rag_train.formats import deeprag
from rag_train.recipe import save_recipe
from rag_train.schema import Decision, Passage, Segment, Step
from rag_train.training.data import dpo_rows, sft_rows
from rag_train.training.masking import IGNORE, encode_segments
from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe
from rag_train.training.run import train
from rag_train.worlds.mini.pretrain import PretrainConfig, build_model


def test_prompt_and_passages_are_masked(tmp_path: Path):
    path = write(tmp_path / "sft.jsonl", [sft_record(3)])
    [row], report = sft_rows(path, TOKENIZER, max_tokens=500, chat=False)
    assert stretches(row["input_ids"], row["labels"]) == [
        (False, "Question: Where was the maker of film 3 born?\n"),
        (
            True,
            "Follow up: Who made film 3?\nIntermediate answer: Maker 3\n"
            "Follow up: Where?\nLet's search the question in Wikipedia.\n",
        ),
        (False, "Context: T: Born in 3.\nIntermediate answer:"),
        (True, " Town 3\nSo the final answer is: Town 3\n<|end|>"),
    ]
    assert report.tokens == len(row["input_ids"])
    assert report.trained_tokens == sum(label != IGNORE for label in row["labels"])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.text(alphabet="ab .?\n:é漢😀'", max_size=8), st.booleans()), min_size=1, max_size=6))
def test_segments_are_tokenised_as_one_text(parts: list[tuple[str, bool]]):
    segments = [Segment(text=text, trained=trained) for text, trained in parts]
    [(ids, labels)] = encode_segments(TOKENIZER, [segments])
    text = "".join(segment.text for segment in segments)
    assert ids == TOKENIZER(text, add_special_tokens=False)["input_ids"]
    flags = [segment.trained for segment in segments for _ in segment.text]
    starts = [start for start, _ in TOKENIZER(text, return_offsets_mapping=True)["offset_mapping"]]
    assert [label != IGNORE for label in labels] == [flags[start] for start in starts]


def test_snippets_are_tokenised_as_in_a_transcript(tmp_path: Path):
    [known, unknown], _ = dpo_rows(write(tmp_path / "d", [pair(0), pair(1)]), TOKENIZER, max_tokens=99, chat=False)
    assert TOKENIZER.convert_ids_to_tokens(unknown["chosen_ids"])[-1] == ".Ċ"
    assert known["chosen_ids"] == unknown["rejected_ids"]
    assert TOKENIZER.decode(known["chosen_ids"]) == deeprag.INTERMEDIATE
    step = Step(subquery="Who?", decision=Decision.RETRIEVE, passages=[Passage(id="", text="x")], answer="a")
    inference = TOKENIZER(deeprag.question_prompt("Where was 1 born?") + deeprag.text_of([step]))["input_ids"]
    written = unknown["prompt_ids"] + unknown["chosen_ids"]
    assert inference[: len(written)] == written


def test_balanced_pairs_come_from_all_of_the_file(tmp_path: Path):
    """A file holds one dataset after another, and a decision must not tell which one a question is from."""
    path = write(tmp_path / "d", [pair(i) for i in (*range(0, 40, 2), *range(1, 20, 2))])
    rows, report = dpo_rows(path, TOKENIZER, max_tokens=99, chat=False, balance=True)
    assert report.examples == 20
    asked = [int(re.findall(r"\d+", TOKENIZER.decode(row["prompt_ids"]))[0]) for row in rows]
    assert asked == [*range(0, 40, 4), *range(1, 20, 2)]


@pytest.mark.slow
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_balanced_examples_have_equal_shares_of_tasks(tmp_path_factory, counts: list[int]):
    records = [
        sft_record(task).model_copy(update={"task": str(task)}) for task, n in enumerate(counts) for _ in range(n)
    ]
    path = write(tmp_path_factory.mktemp("balanced") / "x.jsonl", records)
    rows, report = sft_rows(path, TOKENIZER, max_tokens=500, chat=False, balance=True)
    share = sum(counts) // len(counts)
    assert list(Counter(tuple(row["input_ids"]) for row in rows).values()) == [share] * len(counts)
    assert report.examples == len(rows) == share * len(counts)


@pytest.mark.slow
def test_sft_lowers_loss_and_reports_result(work: Path, tmp_path: Path):
    recipe = recipe_in(work, tmp_path / "out", epochs=12)
    result = train(recipe)
    losses = [entry["loss"] for entry in result.losses]
    assert losses[-1] < 0.7 * losses[0]
    assert (result.steps, result.data["examples"]) == (24, 8)
    assert result.tokens_seen == 12 * result.data["tokens"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.safetensors", "tokenizer.json", "recipe.yaml", "training.json"} <= names
    assert not names & {"checkpoints", "training_args.bin"}
    assert json.loads((tmp_path / "out" / "training.json").read_text()) == asdict(result)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["pairs", "tree"])
@pytest.mark.parametrize("lora", [None, LoraRecipe(r=2)])
def test_first_loss_is_that_of_equal_models(
    tmp_path: Path, layout: Literal["pairs", "tree"], lora: LoraRecipe | None
):
    """U8: in bf16 the reference differed from the model before the first step. Prompts have different lengths."""
    before = [f"{'Who? ' * (17 * i % 40)}\n" for i in range(8)]
    pairs = [
        pair(i).model_copy(update={"prompt": text + pair(i).prompt, "history_start": len(text)})
        for i, text in enumerate(before)
    ]
    data = write(tmp_path / "pairs.jsonl", pairs)
    keys = {"model": str(MODEL), "data": data, "epochs": 1, "batch_size": 2, "chat": False, "lora": lora}
    recipe = recipe_in(tmp_path, tmp_path / "out", stage="dpo", **keys)
    result = train(replace(recipe, dpo=DPORecipe(layout=layout)))
    assert recipe.precision == "bf16" and result.losses[0]["loss"] == pytest.approx(math.log(2), abs=2e-3)


@pytest.mark.slow
def test_tree_layout_trains_as_trl_does(work: Path, tmp_path: Path):
    """All pairs are in one batch, so that both layouts see the same pairs in every step."""
    results = {}
    for layout in ("pairs", "tree"):
        recipe = recipe_in(work, tmp_path / layout, stage="dpo", epochs=8, lr=1e-3, batch_size=8, precision="fp32")
        results[layout] = train(replace(recipe, dpo=DPORecipe(layout=layout)))
    pairs, tree = results["pairs"], results["tree"]
    for theirs, ours in zip(pairs.losses, tree.losses, strict=True):
        for name in ("loss", "rewards/margins", "learning_rate"):
            assert ours[name] == pytest.approx(theirs[name], rel=0.01, abs=1e-4), (name, ours["step"])
    assert pairs.losses[-1]["rewards/margins"] > 0.02
    before, after = (load_file(tmp_path / layout / "model.safetensors") for layout in ("pairs", "tree"))
    for name, weight in before.items():
        if "k_proj.bias" not in name:  # its gradient is rounding error, which Adam scales to a full step
            torch.testing.assert_close(after[name], weight, rtol=1e-2, atol=5e-4)
    assert tree.tokens_seen < pairs.tokens_seen


KILLED_WHILE_SAVING = """
import os, signal, sys
from transformers import Trainer
from rag_train.train import main
save = Trainer._save_rng_state
def save_or_die(trainer, directory):
    if trainer.state.global_step == 14:
        os.kill(os.getpid(), signal.SIGKILL)
    save(trainer, directory)
Trainer._save_rng_state = save_or_die
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_killed_run_ends_with_the_same_weights(work: Path, tmp_path: Path):
    model = shutil.copytree(work / "model", tmp_path / "model")
    config = json.loads((model / "config.json").read_text()) | {"attention_dropout": 0.1}
    (model / "config.json").write_text(json.dumps(config))  # the result depends on the random state
    changes = {"epochs": 15, "batch_size": 1, "gradient_accumulation": 2, "save_steps": 7}
    recipe = recipe_in(work, tmp_path / "whole", model=str(model), **changes)
    whole = train(recipe)

    killed = tmp_path / "killed"
    save_recipe(replace(recipe, output_dir=str(killed)), tmp_path / "recipe.yaml")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED_WHILE_SAVING, str(tmp_path / "recipe.yaml")]
    process = subprocess.run(command, env=environment, capture_output=True)
    assert process.returncode == -signal.SIGKILL
    assert (killed / "checkpoints" / "checkpoint-14" / "model.safetensors").exists()
    assert not (killed / "model.safetensors").exists()

    command = [sys.executable, "-m", "rag_train.train", str(tmp_path / "recipe.yaml")]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    resumed = json.loads((killed / "training.json").read_text())
    assert resumed["resumed_from"] == 7
    assert resumed["losses"] == whole.losses
    assert resumed["tokens_seen"] == whole.tokens_seen
    assert same_weights(tmp_path / "whole", killed)


def test_rejects_run_directory_of_earlier_version(work: Path, tmp_path: Path):
    (tmp_path / "run.json").write_text('{"recipe": {"stage": "sft", "lr": 0.01, "beta": 0.4}}')
    with pytest.raises(UserError, match=r"holds a run of an earlier version, whose recipe has other keys \(beta\)"):
        train(recipe_in(work, tmp_path))


def test_names_line_of_invalid_record(work: Path, tmp_path: Path):
    path = write(tmp_path / "x.jsonl", [sft_record(0)])
    path.write_text(path.read_text() + '{"id": "1"}\n')
    with pytest.raises(UserError) as caught:
        train(recipe_in(work, tmp_path / "out", data=path))
    assert str(caught.value) == (
        f"{path}, line 2: not a SFTRecord (prompt: Field required); "
        "give a file that `rag-train synth` wrote, or fix the line"
    )
    assert not (tmp_path / "out").exists()


def test_rejects_tokenizer_larger_than_vocabulary(work: Path, tmp_path: Path):
    model = tmp_path / "model"
    build_model(PretrainConfig(hidden_size=32, layers=1, heads=2), TOKENIZER).save_pretrained(model)
    larger = build_tokenizer()
    larger.add_tokens([f"<{i}>" for i in range(100)])
    larger.save_pretrained(model)
    with pytest.raises(UserError, match=r"the tokenizer has 371 tokens, but the model's vocabulary has 320; copy"):
        train(recipe_in(work, tmp_path / "out", model=str(model)))


@pytest.mark.slow
def test_a_hub_model_keeps_the_commit_that_its_run_began_with(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The Hub has a newer commit when the killed run continues; the adapter names the model as on the Hub."""
    commits, fetched = ["a" * 40, "b" * 40], []

    def download(model: str, commit: str) -> str:
        fetched.append((model, commit))
        return str(work / "model")

    monkeypatch.setattr("rag_train.llm.hub.commit_of", lambda model, revision: commits.pop(0))
    monkeypatch.setattr("rag_train.llm.hub.snapshot", download)
    keys = {"model": "owner/model", "lora": LoraRecipe(r=2), "save_steps": 1, "precision": "fp32"}
    recipe = recipe_in(work, tmp_path / "out", **keys)
    kill_at(monkeypatch, recipe, 3)
    result = train(recipe)
    assert result.resumed_from == 2 and commits == ["b" * 40]
    assert fetched == [("owner/model", "a" * 40)] * 2 and result.model_commit == "a" * 40
    adapter = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("owner/model", "a" * 40)
    card = (tmp_path / "out/README.md").read_text()
    assert "base_model: owner/model" in card and f"commit on the Hub | `{'a' * 40}`" in card
    assert train(recipe).already_finished
    with pytest.raises(UserError, match=r"holds a run that differs in revision \(was None, is 'v2'\)"):
        train(replace(recipe, revision="v2"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": LoraRecipe(target_modules=["nope"])}, r"model .*: Target modules \{'nope'\} not found"),
        ({"report_to": "tensorboard"}, "report_to=tensorboard: the package is not installed"),
        ({"chat": True}, "has no chat template; set chat=auto"),
        ({"output_dir": "/dev/null/x"}, "output_dir /dev/null/x: Not a directory; choose another"),
        ({"quantize": "4bit"}, "quantize=4bit: quantised weights cannot be trained; set lora.r=16 as well"),
        ({"quantize": "4bit", "lora": LoraRecipe()}, "quantize=4bit: bitsandbytes is not installed; run pip"),
        ({"dpo": DPORecipe()}, "dpo: stage is sft; remove the section dpo or set stage: dpo"),
        ({"stage": "dpo", "sft": SFTRecipe()}, "sft: stage is dpo; remove the section sft or set stage: sft"),
        (
            {"stage": "dpo", "dpo": DPORecipe(label_smoothing=0.1, loss="ipo")},
            "dpo.label_smoothing: not possible with dpo.loss=ipo; set dpo.loss=sigmoid",
        ),
        (
            {"sft": SFTRecipe(pack_tokens=500)},
            "batch_size=4: with sft.pack_tokens, each packed row is a batch",
        ),
        ({"keep": "best"}, "keep=best: needs held-out examples; set eval_data=FILE as well"),
        ({"patience": 3}, "patience=3: needs held-out examples; set eval_data=FILE as well"),
        ({"revision": "v1"}, "revision=v1: model .* is a directory; remove the revision"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    work: Path, tmp_path: Path, changes: dict, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rag_train.training.load.find_spec", lambda name: None)
    with pytest.raises(UserError, match=message):
        train(recipe_in(work, tmp_path / "out", **changes))
