"""The guard of the build, and where the parts of the package lie; all other settings are in pyproject.toml.

data_synth/, eval/, launch/ and recipes/ lie beside rag_train/ here and inside it when it is installed, so that an
installation has one top-level name.
"""

import sys

from setuptools import find_packages, setup

if sys.platform != "linux":
    sys.exit("rag-train runs on Linux only; on Windows, install it in WSL 2")
parts = ["data_synth", "eval", "launch", "recipes"]
within = [f"{part}.{name}" for part in parts for name in find_packages(part)]
setup(
    packages=[*find_packages(include=["rag_train*"]), *(f"rag_train.{name}" for name in [*parts, *within])],
    package_dir={f"rag_train.{part}": part for part in parts},
)
