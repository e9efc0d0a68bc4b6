"""Sweeps: invalid files are rejected before any trial, killed sweeps continue, and W&B's agent runs the same
commands."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from markupsafe import Markup
from matplotlib.figure import Figure
from support.paths import ROOT
from support.training import pair
from support.training import write as write_records

from rag_train.errors import UserError
from rag_train.pages.plots import draw
from rag_train.sweeps.file import Sweep, load_sweep
from rag_train.sweeps.page import trials_table, write_page
from rag_train.sweeps.run import _require_same_sweep, run_sweep
from rag_train.sweeps.study import Study, Trial, best_of, front_of, total_trials
from rag_train.train import main

LR = {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-2}


@pytest.fixture
def write_sweep(work: Path, tmp_path: Path):
    """Write a recipe and a sweep file; ``changes`` replace keys of the sweep file, and None removes a key."""

    def write(stage: str = "dpo", held_out: bool = False, **changes: Any) -> Path:
        recipe = {"stage": stage, "model": str(work / "model"), "data": str(work / f"{stage}.jsonl")}
        if held_out:
            held_out_pairs = [pair(i) for i in range(100, 105)]
            recipe["eval_data"] = str(write_records(tmp_path / "held_out.jsonl", held_out_pairs))
        recipe |= {"output_dir": "unused", "lr": 1e-3, "epochs": 2, "batch_size": 8, "logging_steps": 1}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        command = ["${env}", "python", "-m", "rag_train.train", str(tmp_path / "recipe.yaml")]
        command += ["report_to=wandb", "${args_no_hyphens}"]
        sweep = {
            "method": "bayes",
            "run_cap": 6,
            "metric": {"name": "train/rewards/margins", "goal": "maximize"},
            "parameters": {"dpo.beta": {"values": [0.1, 0.4]}, "lr": LR, "lora.r": {"min": 1, "max": 8}},
            "command": command,
        } | changes
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in sweep.items() if value is not None}))
        return path

    return write


NOT_LOGGED = "train/rewards/margins: not logged in stage sft; give train/loss"
RANKED = "the recipe has eval_data, by which trials are ranked; give eval/loss"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": {"name": "train/f1"}}, "metric train/f1: not logged in stage dpo; give train/rewards/accu"),
        ({"stage": "sft"}, f"metric {NOT_LOGGED}"),
        ({"metric": {"name": "eval/loss"}}, "metric eval/loss: not logged in stage dpo without eval_data; give"),
        ({"held_out": True}, f"metric train/rewards/margins: {RANKED}"),
        ({"parameters": {"lorr": LR}}, "parameter lorr: override .*: unknown key 'lorr'; did you mean 'lora'?"),
        ({"parameters": {"beta": {"value": 1}}}, "parameter beta: override .*; did you mean 'dpo.beta'?"),
        ({"parameters": {"output_dir": {"value": "x"}}}, "parameter output_dir: each trial has its own directory"),
        ({"parameters": {"lr": {"values": [1e-3, 0]}}}, "parameter lr: override 'lr=0': lr: input should be gre"),
        ({"parameters": {"lora.r": {"min": 0, "max": 4}}}, r"override 'lora.r=0': lora.r: input should be greater"),
        ({"parameters": {"lr": {"distribution": "beta"}}}, "parameter lr: .* is not supported; give value, values"),
        ({"parameters": {"lr": LR | {"min": 1.0}}}, "parameter lr: .*correct its values"),
        ({"method": "grid"}, "method grid needs a list of values"),
        ({"command": ["python", "train.py"]}, "command: not a training command; write a list of the words python"),
        ({"early_terminate": {"type": "hyperband"}}, "unknown key 'early_terminate'"),
        ({"run_cap": None}, "the number of trials is not given; add run_cap, or give --trials"),
    ],
)
def test_rejects_invalid_file_before_any_trial(write_sweep, tmp_path: Path, changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        run_sweep(load_sweep(write_sweep(**changes)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_shipped_files_give_the_commands_of_wandb_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    (tmp_path / "runs" / "deeprag").mkdir(parents=True)
    for data in ("sft.jsonl", "pairs.jsonl", "held_out.jsonl", "held_out_pairs.jsonl"):
        (tmp_path / "runs" / "deeprag" / data).touch()
    monkeypatch.chdir(tmp_path)
    for path in sorted((ROOT / "launch" / "sweeps").glob("*.yaml")):
        sweep = load_sweep(path)
        assert sweep.recipe.report_to == "wandb"
        raw = yaml.safe_load(path.read_text())  # YAML 1.1, as W&B reads it
        assert all(isinstance(spec.get("min", 0.0), float) for spec in raw["parameters"].values())
        point = {name: getattr(d, "choices", [getattr(d, "low", None)])[0] for name, d in sweep.space.items()}
        theirs = utils.create_sweep_command_args({"args": {name: {"value": v} for name, v in point.items()}})
        words = [theirs["args_no_hyphens"] if w == "${args_no_hyphens}" else [w] for w in raw["command"][1:]]
        assert sweep.command(point) == ["/usr/bin/env", *(word for part in words for word in part)]


def test_each_run_of_wandb_agent_has_its_own_directory(write_sweep, tmp_path: Path, monkeypatch):
    write_sweep()
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    monkeypatch.setenv("WANDB_RUN_ID", "r1")
    recipes = []
    monkeypatch.setattr("rag_train.training.run.dry_run", lambda recipe, *_: recipes.append(recipe))
    assert main([str(tmp_path / "recipe.yaml"), "lr=1e-2", "--dry-run"]) == 0
    assert recipes[0].output_dir == "unused/r1"


def outcome(trial: Trial) -> Trial:
    if trial.number == 1:
        return replace(trial, state="failed", error="<b>no</b>")
    return replace(trial, state="finished", value=-abs(trial.parameters["lr"] - 3e-3))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grid", "random", "bayes"])
def test_interrupted_sweep_visits_points_of_uninterrupted_sweep(write_sweep, tmp_path: Path, method: str):
    changes = {"parameters": {"dpo.beta": {"values": [0.1, 0.4]}, "lr": {"values": [1e-4, 1e-3, 1e-2]}}}
    sweep = load_sweep(write_sweep(method=method, run_cap=14, **(changes if method == "grid" else {})))
    total = total_trials(sweep, None)
    assert total == (6 if method == "grid" else 14)

    def run(output: Path, kills: tuple[int, ...]) -> list[Trial]:
        output.mkdir()
        study, started = Study(sweep, output, total), 0
        while (trial := study.next()) is not None:
            started += 1
            if started in kills:  # the sweep is killed while the trial is running
                study = Study(sweep, output, total)
                continue
            study.record(outcome(trial))
        return study.trials

    whole = run(tmp_path / "whole", ())
    assert run(tmp_path / "killed", (1, 4, 5)) == whole
    assert len(whole) == total
    points = {tuple(trial.parameters.values()) for trial in whole}
    assert len(points) == total
    assert Study(sweep, tmp_path / "whole", total).next() is None


@pytest.mark.release
@pytest.mark.slow
def test_killed_sweep_continues(write_sweep, tmp_path: Path):
    """As long as the pipe exists, a trial announces its start there and waits to be killed instead of training."""
    pipe = tmp_path / "started"
    os.mkfifo(pipe)
    trial = f'test -p "{pipe}" && {{ echo started > "{pipe}"; exec sleep 3600; }}; exec python -m "$@"'
    command = ["sh", "-c", trial, "trial", "rag_train.train", str(tmp_path / "recipe.yaml"), "${args_no_hyphens}"]
    parameters = {"lr": {"values": [1e-3, 1e20]}, "dpo.beta": {"value": 0.4}, "warmup_ratio": {"value": 0.0}}
    path, out = write_sweep(method="grid", parameters=parameters, command=command), tmp_path / "out"
    command = [sys.executable, "-m", "rag_train.cli", "sweep", str(path), "--output", str(out)]
    sweep = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    assert pipe.read_text() == "started\n"
    pipe.unlink()
    sweep.terminate()
    assert sweep.wait() == 128 + signal.SIGTERM
    with (out / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if the training, which inherits it, is alive
    assert json.loads((out / "0000" / "trial.json").read_text())["state"] == "running"

    result = run_sweep(load_sweep(path), out, parallel=2)
    assert [trial.state for trial in result.trials] == ["finished", "failed"]
    assert "the loss is infinite or NaN; lower lr" in str(result.trials[1].error)
    best = json.loads((out / "0000" / "training.json").read_text())
    assert (result.best.number, result.best.value) == (0, best["losses"][-1]["rewards/margins"])
    rows = list(csv.DictReader((out / "trials.csv").open()))
    assert [float(row["lr"]) for row in rows] == [1e-3, 1e20]

    with pytest.raises(UserError, match="holds trials of another sweep file or recipe"):
        run_sweep(load_sweep(write_sweep()), out)


@pytest.mark.slow
def test_ranks_trials_on_held_out_examples(write_sweep, tmp_path: Path):
    """A trial's value is that of the weights that it keeps, which are its best."""
    parameters = {"lr": {"values": [1e-9, 1e-2]}, "keep": {"value": "best"}, "eval_steps": {"value": 1}}
    metric = {"name": "eval/accuracy", "goal": "maximize"}
    path = write_sweep(held_out=True, method="grid", metric=metric, parameters=parameters)
    result = run_sweep(load_sweep(path), tmp_path / "out")
    for trial in result.trials:
        assert trial.size
        training = json.loads((tmp_path / "out" / f"{trial.number:04d}" / "training.json").read_text())
        best = max(training["validation"], key=lambda entry: entry["eval_accuracy"])  # the first of equals
        assert (trial.value, training["kept_step"]) == (best["eval_accuracy"], best["step"])
    assert "on held-out examples, of the weights kept" in (tmp_path / "out" / "sweep.html").read_text()


@pytest.mark.parametrize(("goal", "sign"), [("maximize", 1), ("minimize", -1)])
def test_the_front_has_the_trials_that_no_smaller_one_equals(
    write_sweep, tmp_path: Path, monkeypatch, goal: str, sign: int
):
    sweep = load_sweep(write_sweep(metric={"name": "train/rewards/margins", "goal": goal}))
    points = [(8, 0.5), (1, 0.2), (4, 0.5), (2, 0.1), (2, 0.3), (16, 0.9), (4, 0.5), (32, 0.9)]
    trials = [
        Trial(i, {"dpo.beta": 0.1, "lr": 1e-3, "lora.r": r}, "finished", sign * value, size=1000 * r)
        for i, (r, value) in enumerate(points)
    ]
    front = front_of(sweep, trials)
    assert [(trial.size, trial.number) for trial in front] == [(1000, 1), (2000, 4), (4000, 2), (16000, 5)]
    assert front_of(sweep, [replace(trial, size=7) for trial in trials]) == []
    table = trials_table(sweep, trials)
    assert {row[0] for row in table.rows if row[table.columns.index("front")]} == {"1", "4", "2", "5"}
    figures = drawn(monkeypatch, tmp_path, sweep, trials)
    line, *points = figures["rewards/margins against trained parameters"].axes[0].lines
    assert len(points) == len(trials) and line.get_xdata().tolist() == [0.001, 0.002, 0.004, 0.016, 0.032]
    assert not any("trained" in title for title in drawn(monkeypatch, tmp_path, sweep, trials[:1]))


def drawn(monkeypatch: pytest.MonkeyPatch, folder: Path, sweep: Sweep, trials: list[Trial]) -> dict[str, Figure]:
    """Write the page, and return its plots by title."""
    figures: dict[str, Figure] = {}

    def record(title: str, size: tuple[float, float], plot: Callable[[Figure], object]) -> Markup:
        def kept(figure: Figure) -> None:
            figures[title] = figure
            plot(figure)

        return draw(title, size, kept)

    monkeypatch.setattr("rag_train.sweeps.page.draw", record)
    write_page(folder / "sweep.html", sweep, trials)
    return figures


def test_page_escapes_text_and_draws_each_finished_trial(write_sweep, tmp_path: Path, monkeypatch):
    sweep = load_sweep(write_sweep(description="<script>alert(1)</script>"))
    trials = [
        outcome(Trial(i, {"dpo.beta": [0.1, 0.4][i % 2], "lr": 1e-4 * (i + 1), "lora.r": i + 1})) for i in range(7)
    ]
    for shown in ([], trials[:1], trials[1:2], trials):
        figures = drawn(monkeypatch, tmp_path, sweep, shown)
        page = (tmp_path / "sweep.html").read_text()
        finished = sum(trial.state == "finished" for trial in shown)
        assert page.count("<figure") == 1 + len(figures) == (5 if finished else 1)
        for name in sweep.space if finished else ():
            assert len(figures[f"rewards/margins against {name}"].axes[0].lines) == finished
        assert "<script" not in page and "<b>" not in page
    command = sweep.command(best_of(sweep, trials)[0].parameters, "report_to=none")
    assert f'<pre tabindex="0">{shlex.join(command)}</pre>' in page
    (tmp_path / "0000").mkdir()
    losses = [{"step": step, "rewards/margins": step / 100} for step in range(1, 1000)]
    (tmp_path / "0000/training.json").write_text(json.dumps({"losses": losses, "validation": []}))
    [course] = drawn(monkeypatch, tmp_path, sweep, trials)["rewards/margins during training"].axes[0].lines
    assert len(course.get_xdata()) == 999
    assert trials_table(sweep, trials).rows[0][0] == "6"


def test_other_data_at_the_same_place_is_another_sweep(write_sweep, tmp_path: Path):
    """Trials on old and on new data were compared."""
    metric = {"name": "eval/accuracy", "goal": "maximize"}
    sweep = load_sweep(write_sweep(held_out=True, metric=metric))
    _require_same_sweep(sweep, tmp_path / "out")
    _require_same_sweep(sweep, tmp_path / "out")
    write_records(tmp_path / "held_out.jsonl", [pair(0)])
    with pytest.raises(UserError, match="sweep file or recipe, or of another model or data at its place"):
        _require_same_sweep(sweep, tmp_path / "out")
