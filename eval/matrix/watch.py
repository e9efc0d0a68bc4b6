"""Evaluates the checkpoints of a training run as they appear, and keeps the best."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from rag_train.errors import UserError
from rag_train.eval.matrix.cell import EVALUATIONS, Cell
from rag_train.jobs.files import placed, to_json, write_text
from rag_train.progress import console
from rag_train.training.checkpoints import newest_complete
from rag_train.training.fit import WANDB_ID
from rag_train.training.result import RESULT

BEST = "best"
BEST_JSON = "best.json"
OUTDATED = "outdated"
"""Name of the directory of a former best checkpoint that is being replaced."""
FINAL = "final"
Log = Callable[[dict[str, Any]], None]


def watch_checkpoints(
    run: Path,
    metric: str,
    evaluate: Callable[[str, str], Sequence[Cell]],
    settings: str = "",
    seconds: float = 10.0,
) -> dict[str, Any]:
    """Evaluate each newest complete checkpoint of ``run`` until training has finished, then the final model.

    Each evaluation is appended to ``evaluations.jsonl`` and logged to the training's W&B run, if it has one. If
    several checkpoints appear during an evaluation, only the newest is evaluated next. ``best/`` contains the first
    checkpoint with the highest mean of ``metric`` over the cells, and ``best.json`` with its values, which are
    returned.

    Args:
        run: the training's ``output_dir``.
        metric: em, f1, accuracy or a key of ``RunSummary.measures``; higher is better.
        evaluate: evaluates a checkpoint, given its name and directory, and returns the cells.
        settings: hash of all that ``evaluate`` depends on besides the checkpoint.
        seconds: seconds between two looks for a new checkpoint.

    Raises UserError if ``run`` is not a directory, if ``metric`` was not measured, or if its checkpoints were
    evaluated with other settings or compared by another metric.
    """
    if not run.is_dir():
        raise UserError(f"--watch {run}: no such directory; give the output_dir of a training run")
    log, snapshot = run / EVALUATIONS, run / "evaluating"
    entries = [json.loads(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else []
    _recover(run, snapshot)
    _require_same_evaluation(run, entries, metric, settings)
    with _wandb_log(run) as to_wandb:
        for name, place in _appearing(run, {entry["checkpoint"] for entry in entries}, seconds):
            if not _snapshot(place, snapshot):
                continue
            values = _values(evaluate(name, str(snapshot)))
            if metric not in values:
                raise UserError(f"--metric {metric}: not measured; give one of {', '.join(values)}")
            entry = {"checkpoint": name, "step": _step(place), "settings": settings} | values
            better = all(values[metric] > before[metric] for before in entries)
            if better:
                write_text(snapshot / BEST_JSON, to_json(entry | {"metric": metric}) + "\n")
                _publish(run, snapshot)
            with placed(log), log.open("a", encoding="utf-8") as file:
                file.write(to_json(entry) + "\n")
            entries.append(entry)
            to_wandb({f"eval/{key}": value for key, value in entry.items() if not isinstance(value, str)})
            console.print(f"{name}: {metric} {values[metric]:.4f}{', the best so far' if better else ''}")
    shutil.rmtree(snapshot, ignore_errors=True)
    return json.loads((run / BEST / BEST_JSON).read_text())


def _publish(run: Path, snapshot: Path) -> None:
    """Put ``snapshot`` in the place of ``best/``. After a kill, `_recover` completes it."""
    if (run / BEST).exists():
        (run / BEST).rename(run / OUTDATED)
    snapshot.rename(run / BEST)
    shutil.rmtree(run / OUTDATED, ignore_errors=True)


def _recover(run: Path, snapshot: Path) -> None:
    """Complete what a kill has interrupted: ``best.json`` is in a snapshot only if it is to become ``best/``."""
    if (snapshot / BEST_JSON).exists():
        _publish(run, snapshot)
    shutil.rmtree(run / OUTDATED, ignore_errors=True)


def _require_same_evaluation(run: Path, entries: Sequence[dict[str, Any]], metric: str, settings: str) -> None:
    """Raise UserError if the checkpoints of ``entries`` cannot be compared with those to come by ``metric``."""
    remedy = f"give the same command again, or delete {run / EVALUATIONS} and {run / BEST} to begin anew"
    if any(entry.get("settings") != settings for entry in entries):
        raise UserError(f"--watch {run}: its checkpoints were evaluated with other questions or settings; {remedy}")
    best = run / BEST / BEST_JSON
    chosen = json.loads(best.read_text())["metric"] if best.exists() else "nothing"
    if entries and chosen != metric:
        raise UserError(f"--metric {metric}: {run / BEST} was chosen by {chosen}; {remedy}")


def _appearing(run: Path, seen: set[str], seconds: float) -> Iterator[tuple[str, Path]]:
    """Yield name and directory of each new checkpoint that is not in ``seen``; last, the final model."""
    while True:
        finished = (run / RESULT).is_file()
        place = run if finished else newest_complete(run / "checkpoints")
        name = FINAL if finished else place.name if place else ""
        if place and name not in seen:
            seen.add(name)
            yield name, place
        elif finished:
            return
        else:
            time.sleep(seconds)


def _snapshot(place: Path, snapshot: Path) -> bool:
    """Link the model's files into ``snapshot``, because training deletes old checkpoints.

    Returns False if training has deleted the checkpoint already.
    """
    shutil.rmtree(snapshot, ignore_errors=True)
    snapshot.mkdir()
    try:
        for file in place.iterdir():
            if file.suffix in (".safetensors", ".json", ".jinja", ".model", ".txt"):
                (os.link if file.suffix == ".safetensors" else shutil.copy2)(file, snapshot / file.name)
    except FileNotFoundError:
        return False
    return True


def _step(place: Path) -> int:
    if (place / RESULT).is_file():
        return json.loads((place / RESULT).read_text())["steps"]
    return int(place.name.rpartition("-")[2])


def _values(cells: Sequence[Cell]) -> dict[str, float]:
    """Return the mean of each measure over the cells."""
    runs = [cell.summary for cell in cells]
    values = {name: [getattr(run, name).mean for run in runs] for name in ("em", "f1", "accuracy", "retrievals")}
    for name in dict.fromkeys(name for run in runs for name in run.measures):
        values[name] = [run.measures[name].mean for run in runs if name in run.measures]
    return {name: fmean(means) for name, means in values.items()}


@contextmanager
def _wandb_log(run: Path) -> Iterator[Log]:
    """Open the training's W&B run as a second process; without a W&B run, discard the values.

    Online, two processes share a run in W&B's shared mode; offline, each process writes a part, which `wandb sync`
    joins.
    """
    if not (run / WANDB_ID).exists():
        yield lambda values: None
        return
    import wandb

    offline = os.environ.get("WANDB_MODE") == "offline"
    shared = None if offline else wandb.Settings(mode="shared", x_primary=False, x_label="evaluation")
    with wandb.init(
        project=os.environ.get("WANDB_PROJECT", "rag-train"),
        id=(run / WANDB_ID).read_text().strip(),
        resume="allow" if offline else None,
        dir=run,
        settings=shared,
    ) as session:
        session.define_metric("eval/*", step_metric="eval/step")
        yield session.log
