"""Paths in the repository and next to it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
"""Real question sets; not part of the repository."""
LAUNCH = ROOT / "launch"
MODEL = ROOT / "rag_train/worlds/mini/checkpoint/controller"
"""The controller that the package ships: the mini model after the demo's cold start."""
DEMO = Path(__file__).with_name("demo.json")
"""Results of the demo in the mini world, seed 0, with one example and short curves."""
