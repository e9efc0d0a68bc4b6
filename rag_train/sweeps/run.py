"""The runner of sweeps: parallel trials, each a training run in its own directory."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path

import torch

from rag_train.errors import UserError
from rag_train.identity import files
from rag_train.identity import model as model_identity
from rag_train.jobs.files import locked, new_file, write_text
from rag_train.progress import progress, say
from rag_train.sweeps.file import Sweep
from rag_train.sweeps.page import write_page
from rag_train.sweeps.study import Study, Trial, best_of, front_of, total_trials
from rag_train.training.result import RESULT, TrainResult


@dataclass(frozen=True)
class SweepResult:
    """The result of a finished sweep."""

    output: str
    metric: str
    best: Trial
    trials: list[Trial]


def run_sweep(sweep: Sweep, output: Path, *, parallel: int | None = None, trials: int | None = None) -> SweepResult:
    """Run the trials of ``sweep`` that are not yet in ``output``; write trials.csv and sweep.html there.

    ``parallel`` is the number of simultaneous trials: by default one on each visible GPU, or one on the CPU.
    ``trials`` is the total number: by default the file's ``run_cap``, or all points of a grid. Finished and failed
    trials are kept. A trial that was running when the sweep was killed is run again with the same parameters, and
    continues from its last checkpoint.

    Raises UserError if ``output`` holds trials of another sweep, if the number of trials is not given, or if all
    trials fail.
    """
    total = total_trials(sweep, trials)
    _require_same_sweep(sweep, output)
    told = f"{output}: waiting for another sweep, or for trainings of a killed sweep, to end"
    # Trainings inherit the lock, so that one that outlived a killed sweep is not started twice.
    with locked(output / "lock", waits=lambda: say(told)) as lock:
        study = Study(sweep, output, total)
        try:
            asyncio.run(_run_all(study, _devices(parallel), lock))
        except asyncio.CancelledError:
            sys.exit(128 + signal.SIGTERM)
        _write_results(study)
    ranked = best_of(sweep, study.trials)
    if not ranked:
        raise UserError(f"{output}: all trials failed; error of the first: {study.trials[0].error}")
    return SweepResult(str(output), sweep.metric, ranked[0], study.trials)


def _require_same_sweep(sweep: Sweep, output: Path) -> None:
    """Write sweep.json; raise UserError if it differs: the sampler must not learn from trials of another sweep."""
    recipe = sweep.recipe
    identity = {
        "sweep": asdict(replace(sweep.file, run_cap=None)),
        "recipe": asdict(recipe),
        "model": model_identity(recipe.model),
        "data_sha256": files(filter(None, (recipe.data, recipe.eval_data))),
    }
    text = json.dumps(identity, indent=2, default=str) + "\n"
    path = output / "sweep.json"
    try:
        output.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_text(path, text)
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror}; choose another directory") from error
    if path.read_text() != text:
        raise UserError(
            f"--output {output}: holds trials of another sweep file or recipe, or of another model or data at its "
            "place; choose another or delete it"
        )


def _devices(parallel: int | None) -> list[str | None]:
    """Return the GPU of each worker, None for the CPU."""
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(i) for i in range(count)]
    return [gpus[i % count] if count else None for i in range(parallel or count or 1)]


async def _run_all(study: Study, devices: list[str | None], lock: FileIO) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with progress(f"{study.sweep.file.method} sweep", study.total, study.ended) as advance:

        async def work(device: str | None) -> None:
            while (trial := study.next()) is not None:
                study.record(await _train(study, trial, device, len(devices), lock))
                _write_results(study)
                ranked = best_of(study.sweep, study.trials)
                advance(1, f"best {study.sweep.metric} {ranked[0].value:.4g}" if ranked else "")

        async with asyncio.TaskGroup() as workers:
            for device in devices:
                workers.create_task(work(device))


def _write_results(study: Study) -> None:
    """Write trials.csv, in the order of the trials and with unrounded numbers, and sweep.html."""
    front = front_of(study.sweep, study.trials)
    with new_file(study.output / "trials.csv") as file:
        measured = [study.sweep.metric, "trained_parameters", "front", "seconds", "state", "error"]
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["trial", *study.sweep.space, *measured])
        for trial in study.trials:
            result = [trial.value, trial.size, trial in front, trial.seconds, trial.state, trial.error]
            writer.writerow([trial.number, *trial.parameters.values(), *result])
    write_page(study.output / "sweep.html", study.sweep, study.trials)


async def _train(study: Study, trial: Trial, device: str | None, workers: int, lock: FileIO) -> Trial:
    """Run the training of ``trial``; kill it if the sweep is cancelled."""
    directory = study.directory(trial.number)
    command = study.sweep.command(trial.parameters, f"output_dir={directory}", "report_to=none")
    start = time.perf_counter()
    with (directory / "trial.log").open("wb") as log:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdout=log,
                stderr=log,
                env=_environment(device, workers),
                pass_fds=[lock.fileno()],
                start_new_session=True,  # Ctrl-C must not reach the training, or its trial would count as failed
            )
        except OSError as error:
            return replace(trial, state="failed", error=str(error))
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # a later sweep continues it from its last checkpoint
                await process.wait()
    trial = replace(trial, seconds=time.perf_counter() - start)
    if code:
        return replace(trial, state="failed", error=_last_error(directory / "trial.log", code))
    result = TrainResult(**json.loads((directory / RESULT).read_text()))
    value = _value(result, study.sweep.metric)
    if value is None:
        return replace(trial, state="failed", error=f"{study.sweep.metric} was never logged; lower logging_steps")
    return replace(trial, state="finished", value=value, size=result.trained_parameters)


def _value(result: TrainResult, metric: str) -> float | None:
    """Return the last value of a metric of training, or the value on held-out examples of the weights that were
    kept."""
    entries = result.kept if metric.startswith("eval_") else result.losses
    return next((entry[metric] for entry in reversed(entries) if metric in entry), None)


def _environment(device: str | None, workers: int) -> dict[str, str]:
    """Return the environment of a trial: this Python first on the path, and one GPU or a share of the cores."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    if device is not None:
        return os.environ | {"PATH": path, "CUDA_VISIBLE_DEVICES": device}
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    return {"OMP_NUM_THREADS": threads} | os.environ | {"PATH": path}


def _last_error(log: Path, code: int) -> str:
    """Return the last line of the log that starts with "error: ", or else the last line."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"exit code {code}"])[-1]
