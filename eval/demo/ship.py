"""Copies the mini model and the controller of the demo's cold start into the package, which ships both.

Usage: ``rag-train demo --scratch --work NEW_DIR``, then ``python -m rag_train.eval.demo.ship NEW_DIR``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from rag_train.errors import UserError
from rag_train.training.result import RESULT
from rag_train.worlds.mini.pretrain import RECORD, SHIPPED, pretrained
from rag_train.worlds.mini.settings import PretrainConfig
from rag_train.worlds.mini.world import World, WorldConfig

WEIGHTS = "model.safetensors"
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS)


def ship(demo: Path) -> None:
    """Copy the checkpoints from the demo's working directory ``demo`` into the package.

    Raises:
        UserError: unless there is exactly one cold start of seed 0.
    """
    controllers = sorted(path.parent for path in demo.glob(f"seed0-*/coldstart/{RESULT}"))
    if len(controllers) != 1:
        raise UserError(f"{demo}: {len(controllers)} cold starts of seed 0; run rag-train demo --work NEW_DIR")
    base, _ = pretrained(World(WorldConfig()), PretrainConfig(), demo / "base", scratch=True)
    for source, name in ((base, "base"), (controllers[0], "controller")):
        target = SHIPPED / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for file in FILES:
            shutil.copyfile(source / file, target / file)
    shutil.copyfile(base / RECORD, SHIPPED / "base" / RECORD)
    weights = load_file(SHIPPED / "controller" / WEIGHTS)
    # With the precision of half floats, as the mini model's, the file compresses to half of its size.
    weights = {name: tensor.half().float() for name, tensor in weights.items()}
    save_file(weights, SHIPPED / "controller" / WEIGHTS, {"format": "pt"})
    (SHIPPED / "controller" / WEIGHTS).chmod(0o644)


if __name__ == "__main__":
    ship(Path(sys.argv[1]))
