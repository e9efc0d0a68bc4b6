"""The wheel: one top-level package with everything that runs outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.paths import ROOT

pytestmark = pytest.mark.slow
LEFT_OUT = (".*", "__pycache__", "*.egg-info", "build", "docs", "runs", "tests")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the unpacked wheel."""
    source, target = tmp_path_factory.mktemp("wheel") / "source", tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*LEFT_OUT))
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(target)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, check=True)
    [wheel] = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    wheel.unlink()
    return target


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command line in ``folder``."""
    environment = os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "200"}
    command = [sys.executable, "-m", "rag_train.cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_wheel_has_one_top_level_package(installed: Path):
    assert {path.name.partition("-")[0] for path in installed.iterdir()} == {"rag_train"}


@pytest.mark.parametrize("folder", ["rag_train", "data_synth", "eval", "recipes", "launch"])
def test_wheel_has_every_file_of_the_package(installed: Path, folder: str):
    def files(root: Path) -> set[Path]:
        found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return {path for path in found if "__pycache__" not in path.parts}

    within = installed / "rag_train" / ("" if folder == "rag_train" else folder)
    assert files(ROOT / folder) <= files(within)


def test_init_writes_recipes_next_to_a_folder_called_eval(installed: Path, tmp_path: Path):
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval/__init__.py").write_text("raise RuntimeError('not ours')\n")
    assert run(installed, tmp_path, "init").returncode == 0
    assert (tmp_path / "recipes/deeprag_sft.yaml").is_file() and (tmp_path / "launch/torchrun.sh").is_file()
    again = run(installed, tmp_path, "init")
    assert again.returncode == 2 and "already exists; move it away or choose another directory" in again.stderr


def test_demo_finds_its_recipe_outside_the_repository(installed: Path, tmp_path: Path):
    failed = run(installed, tmp_path, "demo", "miniworld.world.people=10")
    assert failed.returncode == 2 and "leave 0 to the dev split" in failed.stderr
    assert list(tmp_path.iterdir()) == []
