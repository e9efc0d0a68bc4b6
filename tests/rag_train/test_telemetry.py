"""What importing the package sets."""

from __future__ import annotations

import subprocess
import sys

import pytest

NAMES = ("DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "RAY_USAGE_STATS_ENABLED", "VLLM_NO_USAGE_STATS")
PROGRAM = f"import os, rag_train; print(*(os.environ[name] for name in {NAMES}))"


@pytest.mark.parametrize(("given", "set_to"), [({}, "1 1 0 1"), ({"DO_NOT_TRACK": "0"}, "0 1 0 1")])
def test_telemetry_is_off_unless_the_user_switches_it_on(given: dict[str, str], set_to: str):
    """R16: only the Makefile switched it off."""
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))} | given
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == set_to
