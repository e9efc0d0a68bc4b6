"""Faults made on purpose, outside of the package: the self-test fails in the right line, and in no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from rag_train.selftest.registry import FAIL

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]
PATCH = """
import importlib.util, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module
        def execute_and_break(module):
            execute(module)
            damage(module)
        spec.loader.exec_module = execute_and_break
        return spec

sys.meta_path.insert(0, Finder())
"""
"""A sitecustomize.py that calls ``damage`` on the module ``MODULE`` after its import."""
NO_STOPS = """
MODULE = "vllm.v1.engine.detokenizer"
def damage(module):
    module.check_stop_strings = lambda *arguments, **named: None
"""
WRONG_ATTENTION = """
MODULE = "torch.nn.functional"
def damage(module):
    right = module.scaled_dot_product_attention
    module.scaled_dot_product_attention = lambda *arguments, **named: right(*arguments, **named) * 1.02
"""
DAMAGED_CHECKPOINT = """
import pathlib, sys
for argument in sys.orig_argv:
    if argument.startswith("output_dir=") and argument.endswith("/resumed"):
        for file in pathlib.Path(argument.partition("=")[2]).glob("checkpoints/*/model.safetensors"):
            file.write_bytes(file.read_bytes()[:1000])
"""
NO_FAISS = "raise ImportError('undefined symbol: _ZN5faiss9gpu')"
FAULTS = {
    "another module is imported as faiss": ({"faiss.py": NO_FAISS}, ["dense"], "dense encoding and search"),
    "stop strings are ignored": ({"sitecustomize.py": NO_STOPS + PATCH}, ["vllm:"], "vLLM: stop strings"),
    "an attention computes other numbers": (
        {"sitecustomize.py": WRONG_ATTENTION + PATCH},
        ["attention", "dense"],
        "attention over trees",
    ),
    "a checkpoint is damaged": (
        {"sitecustomize.py": DAMAGED_CHECKPOINT},
        ["resumed", "lora"],
        "training, resumed after a kill",
    ),
    "a launch file is not valid": ({}, ["zero-3"], "training, ZeRO-3"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_its_line_alone(fault: str, tmp_path: Path):
    files, parts, broken = FAULTS[fault]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    if not files:
        _package_with_a_wrong_launch_file(tmp_path)
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "rag_train.cli", "selftest", *parts, "--json", str(tmp_path / "found.json")]
    environment = os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    found = {part["name"]: part["status"] for part in json.loads((tmp_path / "found.json").read_text())["parts"]}
    assert [name for name, status in found.items() if status == FAIL] == [broken], done.stdout
    assert len(found) > 1 and done.returncode == 1


def _package_with_a_wrong_launch_file(folder: Path) -> None:
    """Link the files of an installed package into ``folder``, with a launch file that Accelerate cannot read."""
    (folder / "rag_train").mkdir()
    beside = [ROOT / name for name in ("data_synth", "eval", "recipes")]
    for path in [*(ROOT / "rag_train").iterdir(), *beside]:
        if path.name != "__pycache__":
            (folder / "rag_train" / path.name).symlink_to(path)
    (folder / "rag_train/launch/accelerate").mkdir(parents=True)
    for path in (ROOT / "launch/accelerate").iterdir():
        text = path.read_text()
        changed = text.replace("zero_stage: 3", "zero_stage: three") if path.stem == "zero3_cpu" else text
        (folder / "rag_train/launch/accelerate" / path.name).write_text(changed)
