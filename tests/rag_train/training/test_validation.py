"""Validation: figures equal those of single examples, and the best weights are kept, by a killed run as well."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from support.training import TOKENIZER, kill_at, pair, recipe_in, same_weights, sft_record, write
from transformers import AutoModelForCausalLM

from rag_train.errors import UserError
from rag_train.schema import PreferencePair, Segment, SFTRecord
from rag_train.training.data import dpo_rows, sft_rows
from rag_train.training.load import require_disjoint
from rag_train.training.masking import IGNORE
from rag_train.training.recipe import DPORecipe, LoraRecipe, SFTRecipe, TrainRecipe
from rag_train.training.run import train
from rag_train.training.tree_dpo import preference_loss

LAYOUTS = {
    "sft": {"stage": "sft"},
    "packed": {"stage": "sft", "batch_size": 1, "sft": SFTRecipe(pack_tokens=400)},
    "sft by example": {"stage": "sft", "sft": SFTRecipe(weight="example")},
    "packed by example": {"stage": "sft", "batch_size": 1, "sft": SFTRecipe(pack_tokens=400, weight="example")},
    "pairs": {"stage": "dpo", "dpo": DPORecipe(layout="pairs", sft_weight=0.1)},
    "tree": {"stage": "dpo", "dpo": DPORecipe(layout="tree", sft_weight=0.1)},
}


def recipe_for(work: Path, output: Path, **keys) -> TrainRecipe:
    """Return a recipe with seven held-out examples that become less and less probable by the training."""
    held_out = work / f"held_out_{keys['stage']}.jsonl"
    write(held_out, [(_other_text if keys["stage"] == "sft" else _other_decision)(i) for i in range(100, 107)])
    more = {"batch_size": 2, "precision": "fp32", "eval_data": held_out, "eval_steps": 2, "keep": "best"}
    return recipe_in(work, output, **(more | {"warmup_ratio": 0.0, "save_steps": 5} | keys))


def _other_text(i: int) -> SFTRecord:
    text = "#%&*+=" * (i - 99)
    return sft_record(i).model_copy(update={"completion": text, "segments": [Segment(text=text, trained=True)]})


def _other_decision(i: int) -> PreferencePair:
    return pair(i).model_copy(update={"chosen": pair(i).rejected, "rejected": pair(i).chosen})


def figures(recipe: TrainRecipe, model: str) -> tuple[float, float]:
    """Return loss and accuracy of a checkpoint on the held-out examples, computed one sequence at a time."""
    policy, reference = (AutoModelForCausalLM.from_pretrained(path) for path in (model, recipe.model))

    @torch.no_grad()
    def logits(network, ids: list[int]) -> torch.Tensor:
        return torch.log_softmax(network(torch.tensor([ids])).logits[0, :-1].float(), -1)

    assert recipe.eval_data is not None
    losses, right = [], []
    if recipe.stage == "sft":
        for row in sft_rows(recipe.eval_data, TOKENIZER, max_tokens=500, chat=False)[0]:
            labels = torch.tensor(row["labels"][1:])
            scores, labels = logits(policy, row["input_ids"])[labels != IGNORE], labels[labels != IGNORE]
            each = (-scores.gather(1, labels[:, None])[:, 0]).tolist()
            losses += [fmean(each)] if recipe.sft and recipe.sft.weight == "example" else each
            right += (scores.argmax(-1) == labels).tolist()
        return fmean(losses), fmean(right)

    def logprob(network, row: dict[str, list[int]], side: str) -> float:
        ids = row["prompt_ids"] + row[side]
        scores = logits(network, ids)[len(row["prompt_ids"]) - 1 :]
        return float(scores.gather(1, torch.tensor(row[side])[:, None]).sum())

    assert recipe.dpo is not None
    imitation, tokens = 0.0, 0
    sides = ("chosen_ids", "rejected_ids")
    for row in dpo_rows(recipe.eval_data, TOKENIZER, max_tokens=500, chat=False)[0]:
        ours, theirs = ([logprob(network, row, side) for side in sides] for network in (policy, reference))
        lengths = torch.tensor([[len(row[side]) for side in sides]])
        loss = preference_loss(recipe.dpo, torch.tensor([ours]) - torch.tensor([theirs]), lengths)
        losses.append(float(loss))
        imitation, tokens = imitation - ours[0], tokens + len(row["chosen_ids"])  # averaged over tokens, as by TRL
        right.append(ours[0] > ours[1])
    loss = sum(losses) / len(losses) + recipe.dpo.sft_weight * imitation / tokens
    return loss, sum(right) / len(right)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_keeps_the_weights_of_the_best_evaluation(work: Path, tmp_path: Path, layout: str):
    """Seven held-out examples fill no whole number of batches."""
    recipe = recipe_for(work, tmp_path / "out", **LAYOUTS[layout])
    result = train(recipe)
    steps = [entry["step"] for entry in result.validation]
    assert steps[-1] == result.steps and steps[:-1] == list(range(2, result.steps, 2))
    best = (max if recipe.stage == "dpo" else min)(result.validation, key=lambda entry: entry[recipe.criterion])
    assert result.kept_step == best["step"] < result.steps
    loss, accuracy = figures(recipe, recipe.output_dir)
    assert (best["eval_loss"], best["eval_accuracy"]) == pytest.approx((loss, accuracy), rel=1e-4)
    logged = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["eval_loss"] for row in logged if "eval_loss" in row] == [e["eval_loss"] for e in result.validation]
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| {result.kept_step} (kept) | {best['eval_loss']:.4g} |" in card


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["packed", "pairs"])
def test_killed_run_keeps_the_same_weights(work: Path, tmp_path: Path, layout: str, monkeypatch):
    """Killed after the best step, so that its checkpoint must outlive the later ones. The adapters are merged."""
    keys = LAYOUTS[layout] | {"lora": LoraRecipe(r=2, merge=True), "save_steps": 1, "epochs": 4}
    whole = train(recipe_for(work, tmp_path / "whole", **keys))
    assert whole.kept_step is not None and whole.kept_step + 3 < whole.steps
    killed = recipe_for(work, tmp_path / "killed", **keys)
    kill_at(monkeypatch, killed, whole.kept_step + 4)
    best, newest = (tmp_path / f"killed/checkpoints/checkpoint-{whole.kept_step + more}" for more in (0, 3))
    assert set(best.parent.glob("checkpoint-*")) == {best, newest}
    states = {file.name for file in newest.iterdir()} - {file.name for file in best.iterdir()}
    assert states == {"optimizer.pt", "scheduler.pt", "rng_state.pth"}
    resumed = train(killed)
    assert resumed.resumed_from == whole.kept_step + 3
    assert (resumed.validation, resumed.kept_step) == (whole.validation, whole.kept_step)
    assert resumed.losses == whole.losses
    assert same_weights(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_stops_when_patience_is_exhausted(work: Path, tmp_path: Path, monkeypatch):
    """The accuracy stays what it is at the first evaluation. The run is killed and stops at the same step."""
    keys = LAYOUTS["tree"] | {"lr": 1e-9, "eval_steps": 1, "patience": 4, "epochs": 9, "save_steps": 2}
    result = train(recipe_for(work, tmp_path / "whole", keep="last", **keys))
    assert (result.steps, result.kept_step, len(result.validation)) == (5, 5, 5)
    killed = recipe_for(work, tmp_path / "killed", keep="last", **keys)
    kill_at(monkeypatch, killed, 4)
    resumed = train(killed)
    assert (resumed.resumed_from, resumed.steps, resumed.validation) == (2, 5, result.validation)


def test_refuses_questions_that_are_also_trained_on(work: Path, tmp_path: Path):
    """A module's examples have ids below their question's; pairs of the same question have different prompts."""
    train_on = write(tmp_path / "train", [sft_record(i).model_copy(update={"id": f"q{i}/plan"}) for i in range(4)])
    other = write(tmp_path / "other", [sft_record(9).model_copy(update={"id": "q3/step/1"}), sft_record(8)])
    renamed = write(tmp_path / "renamed", [sft_record(2).model_copy(update={"id": "x"})])
    deeper = pair(1).model_copy(update={"id": "y", "prompt": pair(1).prompt + "more"})
    require_disjoint(train_on, write(tmp_path / "good", [sft_record(9)]))
    for data, eval_data, id in (
        (train_on, other, "q3"),
        (train_on, renamed, "x"),
        (work / "dpo.jsonl", write(tmp_path / "deeper", [deeper]), "y"),
    ):
        with pytest.raises(UserError) as caught:
            require_disjoint(data, eval_data)
        assert str(caught.value) == (
            f"eval_data {eval_data}: 1 of its examples ask questions that are in data {data} too, the first with "
            f"id '{id}'; remove these questions from one of the two files"
        )
    with pytest.raises(UserError, match="ask questions that are in data"):
        train(replace(recipe_for(work, tmp_path / "out", stage="sft"), eval_data=work / "sft.jsonl"))
