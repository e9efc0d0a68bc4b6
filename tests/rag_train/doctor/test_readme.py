"""The README that `rag-train init` writes: its commands can be given on the machine that it was written for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.paths import ROOT
from typer.main import get_command

from rag_train.cli.app import app
from rag_train.doctor.machine import Accelerator
from rag_train.doctor.packages import Seen
from rag_train.doctor.readme import Choice, choose, readme, write_readme
from rag_train.training.recipe import load_train_recipe

GIB = 2**30
MACHINES = {
    "none": ([], Choice("smollm2-135m", 1)),
    "small": ([Accelerator("T4", 15 * GIB, False)], Choice("qwen3-4b", 1)),
    "many": ([Accelerator("H100", 80 * GIB, True)] * 8, Choice("qwen2.5-7b", 8)),
}


@pytest.mark.parametrize("name", MACHINES)
def test_model_fits_the_machine(name: str):
    devices, choice = MACHINES[name]
    assert choose(devices) == choice


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_commands_exist_and_recipes_take_their_keys(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    devices, choice = MACHINES[name]
    monkeypatch.chdir(ROOT)
    (tmp_path / "data.jsonl").touch()
    blocks = re.findall(r"```\n(.*?)```", readme(devices), re.DOTALL)
    commands = [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    known = set(get_command(app).commands)
    assert {words[1] for words in commands if words[0] == "rag-train"} <= known
    trained = [words for words in commands if "rag_train.train" in words or words[1] == "train"]
    assert len(trained) == 2 and all(
        words[0] == ("accelerate" if len(devices) > 1 else "rag-train") for words in trained
    )
    for words in trained:
        recipe = next(i for i, word in enumerate(words) if word.endswith("deeprag_sft.yaml") or "dpo" in word)
        loaded = load_train_recipe(words[recipe], [*words[recipe + 1 :], f"data={tmp_path}/data.jsonl"])
        assert loaded.lora and loaded.model_preset == f"{choice.preset}-lora"
    places = {word for words in commands for word in words if word.startswith(("recipes/", "launch/"))}
    assert places and all(Path(place).is_file() for place in places)


def test_it_is_written_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rag_train.doctor.readme.accelerators", lambda: Seen([], problem="ImportError: torch"))
    assert "the machine had no accelerator" in write_readme(tmp_path).read_text()
