"""Synthesis on a Ray cluster."""

from pathlib import Path

import pytest


@pytest.mark.release
@pytest.mark.slow
def test_ray_writes_the_same_files_as_one_process(made: Path, call, capsys):
    pytest.importorskip("ray")
    recipe = str(made / "gold.yaml")
    before = {path.name: path.read_bytes() for path in made.glob("gold.jsonl*")}
    for name in before:
        (made / name).unlink()
    assert call("synth", "levelrag", recipe, "--ray", "2") == 0
    assert {path.name: path.read_bytes() for path in made.glob("gold.jsonl*")} == before
    assert call("synth", "levelrag", recipe, "--ray", "2", "--shard", "1/2") == 2
    assert "--shard and --ray exclude each other" in capsys.readouterr().err
