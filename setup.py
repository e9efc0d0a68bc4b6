"""The guard of the build; all settings are in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

if sys.platform != "linux":
    sys.exit("rag-train runs on Linux only; on Windows, install it in WSL 2")
for name in ("data_synth", "eval", "launch", "recipes"):
    if not (Path(__file__).parent / "rag_train" / name).is_dir():
        sys.exit(f"rag_train/{name} is not a link to {name}/: check out with symbolic links (git, not a ZIP file)")
setup()
