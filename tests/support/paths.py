"""Paths in the repository and next to it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
"""Real question sets; not part of the repository."""
LAUNCH = ROOT / "launch"
MODEL = next((ROOT / "rag_train/miniworld/checkpoint").iterdir())
"""The mini model that the package ships."""
