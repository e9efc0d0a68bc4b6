"""Paths in the repository and next to it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
"""Real question sets; not part of the repository."""
LAUNCH = ROOT / "launch"
MODEL = ROOT / "rag_train/miniworld/checkpoint/controller"
"""The controller that the package ships: the mini model after the demo's cold start."""
