"""Evaluation of a training run's checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.matrices import add_cell, numbered

from rag_train.errors import UserError
from rag_train.eval.matrix.cell import Cell
from rag_train.eval.matrix.watch import watch_checkpoints


def test_evaluates_checkpoints_as_they_appear_and_keeps_the_best(tmp_path: Path) -> None:
    run, matrix = tmp_path / "run", tmp_path / "m"
    values = {"checkpoint-10": 1, "checkpoint-20": 3, "final": 2}

    def save(place: Path, name: str, mark: bool = True) -> None:
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps({"name": name}))
        (place / "optimizer.pt").write_bytes(b"x" * 9)
        (place / "model.safetensors").write_bytes(name.encode())
        sizes = {file.name: file.stat().st_size for file in place.iterdir()}
        if mark:
            (place / "complete.json").write_text(json.dumps(sizes))

    def evaluated(name: str, place: str) -> list[Cell]:
        assert (Path(place) / "model.safetensors").read_bytes() == name.encode()
        assert not (Path(place) / "optimizer.pt").exists()
        if name == "checkpoint-10":  # meanwhile, training deletes this checkpoint and saves two others
            for file in (run / "checkpoints" / name).iterdir():
                file.unlink()
            save(run / "checkpoints" / "checkpoint-20", "checkpoint-20")
            save(run / "checkpoints" / "checkpoint-30", "checkpoint-30", mark=False)
        if name == "checkpoint-20":
            save(run, "final")
            (run / "training.json").write_text('{"steps": 35}')
        return [add_cell(matrix, name, numbered(0, 2, 4), ["yes"] * values[name] + ["no"] * (3 - values[name]))]

    save(run / "checkpoints" / "checkpoint-10", "checkpoint-10")
    best = watch_checkpoints(run, "em", evaluated, seconds=0)
    assert (best["checkpoint"], best["step"], best["em"]) == ("checkpoint-20", 20, 1.0)
    assert (run / "best" / "model.safetensors").read_bytes() == b"checkpoint-20"
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [(line["checkpoint"], line["step"]) for line in lines] == [
        ("checkpoint-10", 10),
        ("checkpoint-20", 20),
        ("final", 35),
    ]
    assert watch_checkpoints(run, "em", evaluated, seconds=0) == best, "no checkpoint is evaluated again"
    assert not (run / "evaluating").exists()
    with pytest.raises(UserError, match=r"--watch .*gone: no such directory"):
        watch_checkpoints(tmp_path / "gone", "em", evaluated)
    (run / "evaluations.jsonl").unlink()
    with pytest.raises(UserError, match="--metric bleu: not measured; give one of em, f1"):
        watch_checkpoints(run, "bleu", evaluated, seconds=0)
