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
    evaluations = [(line["checkpoint"], line["step"]) for line in lines]
    assert evaluations == [("checkpoint-10", 10), ("checkpoint-20", 20), ("final", 35)]
    assert watch_checkpoints(run, "em", evaluated, seconds=0) == best, "no checkpoint is evaluated again"
    assert not (run / "evaluating").exists()
    with pytest.raises(UserError, match=r"--watch .*gone: no such directory"):
        watch_checkpoints(tmp_path / "gone", "em", evaluated)
    (run / "evaluations.jsonl").unlink()
    with pytest.raises(UserError, match="--metric bleu: not measured; give one of em, f1"):
        watch_checkpoints(run, "bleu", evaluated, seconds=0)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A finished training run."""
    run = tmp_path / "run"
    run.mkdir()
    for name, text in (("model.safetensors", "final"), ("config.json", "{}"), ("training.json", '{"steps": 5}')):
        (run / name).write_text(text)
    return run


def watched(run: Path, metric: str = "em", settings: str = "") -> dict:
    def evaluated(name: str, place: str) -> list[Cell]:
        return [add_cell(run / "m", name, numbered(0), ["yes"])]

    return watch_checkpoints(run, metric, evaluated, settings, seconds=0)


def test_another_metric_or_other_questions_are_refused(finished: Path) -> None:
    """A second metric was a KeyError, and other questions' scores were compared with the first ones'."""
    first = watched(finished)
    with pytest.raises(UserError, match=r"--metric judge: .*best was chosen by em; give the same command again"):
        watched(finished, "judge")
    with pytest.raises(UserError, match="evaluated with other questions or settings; give the same command again"):
        watched(finished, settings="other questions")
    assert watched(finished) == first


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_kill_while_the_best_is_replaced_loses_nothing(
    finished: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    """The best checkpoint was deleted before the better one was in its place."""
    best = finished / "best"
    best.mkdir()
    (best / "best.json").write_text('{"metric": "em", "em": 0.5}')
    rename, calls = Path.rename, []

    def killed(path: Path, target: Path) -> Path:
        if path.name in ("best", "evaluating"):
            calls.append(path)
            if len(calls) == killed_at:
                raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        watched(finished)
    monkeypatch.setattr(Path, "rename", rename)
    (finished / "model.safetensors").unlink()  # as training deletes old checkpoints
    with pytest.raises(UserError, match="other questions"):
        (finished / "evaluations.jsonl").write_text('{"checkpoint": "final", "em": 1.0, "settings": "others"}\n')
        watched(finished)
    assert json.loads((best / "best.json").read_text())["em"] == 1.0
    assert (best / "model.safetensors").read_text() == "final" and not (finished / "outdated").exists()
