"""Training under the launch configurations, on two processes of the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.paths import LAUNCH, ROOT

from rag_train.recipe import save_recipe
from rag_train.training.recipe import TrainRecipe

KILLED = 6
KILL = f"""
import sys
from rag_train.train import main
from rag_train.training import build
from support.training import KillAt

build_trainer = build.build_trainer
def build_and_kill(*arguments):
    trainer = build_trainer(*arguments)
    trainer.add_callback(KillAt({KILLED}))
    return trainer
build.build_trainer = build_and_kill
sys.exit(main())
"""


def launch(
    config: str, recipe: TrainRecipe, folder: Path, *, kill: bool = False
) -> subprocess.CompletedProcess[str]:
    """Train with a launch configuration, changed to two processes on the CPU only."""
    text = (LAUNCH / "accelerate" / f"{config}.yaml").read_text()
    for value, changed in (("use_cpu: false", "use_cpu: true"), ("num_processes: 8", "num_processes: 2")):
        assert value in text
        text = text.replace(value, changed)
    (folder / "config.yaml").write_text(text)
    (folder / "kill.py").write_text(KILL)
    save_recipe(recipe, folder / "recipe.yaml")
    command = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    command += ["--config_file", str(folder / "config.yaml")]
    command += [str(folder / "kill.py")] if kill else ["-m", "rag_train.train"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.run(
        [*command, str(folder / "recipe.yaml")], env=environment, capture_output=True, text=True, check=False
    )
