"""The launch files of clusters: Slurm's script under Slurm itself, and the restarts that Kubernetes' job counts on.

All machines are this one. Slurm takes two loopback addresses for two machines, and a character device for a GPU.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.paths import LAUNCH
from support.training import recipe_in

from rag_train.recipe import save_recipe
from rag_train.training.recipe import TrainRecipe
from rag_train.training.run import train

pytestmark = [pytest.mark.release, pytest.mark.slow]

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
SLURM = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
GresTypes=gpu
NodeName=127.0.0.1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1 RealMemory=4000 Gres=gpu:1
NodeName=127.0.0.2 NodeHostname={host} NodeAddr=127.0.0.2 Port={second} CPUs=1 RealMemory=4000 Gres=gpu:1
PartitionName=main Nodes=ALL Default=YES
"""
DEVICES = """\
NodeName=127.0.0.1 Name=gpu File=/dev/zero
NodeName=127.0.0.2 Name=gpu File=/dev/full
"""


def until(done: Callable[[], object], what: str, seconds: float = 300) -> None:
    """Wait until ``done`` returns a true value."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"no {what} after {seconds:.0f} seconds"
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in sockets]


def logged_steps(recipe: TrainRecipe) -> int:
    path = Path(recipe.output_dir) / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def lose(machine: psutil.Popen) -> None:
    """Kill all processes of a machine at the same time."""
    if machine.is_running():
        everything = [machine, *machine.children(recursive=True)]
        for action in (psutil.Process.suspend, psutil.Process.kill):  # so that none sees another's end
            for process in everything:
                with suppress(psutil.NoSuchProcess):
                    action(process)


def assert_continued(recipe: TrainRecipe, losses: list[float], rel: float) -> None:
    """The result of ``recipe`` comes from two processes, was resumed and has the losses of one process."""
    result = json.loads((Path(recipe.output_dir) / "training.json").read_text())
    assert result["machine"]["processes"] == "2"
    assert result["resumed_from"] >= recipe.save_steps
    assert [entry["loss"] for entry in result["losses"]] == pytest.approx(losses[-len(result["losses"]) :], rel=rel)


@pytest.fixture
def recipes(work: Path, tmp_path: Path) -> tuple[TrainRecipe, list[float]]:
    """A recipe of two hundred steps for two processes, and the losses of one process."""
    keys = {"batch_size": 2, "epochs": 100, "lr": 1e-3, "precision": "fp32", "save_steps": 20}
    recipe = recipe_in(work, tmp_path / "two", **keys)
    save_recipe(recipe, tmp_path / "recipe.yaml")
    one = train(replace(recipe, output_dir=str(tmp_path / "one"), batch_size=4))
    return recipe, [entry["loss"] for entry in one.losses]


def test_torchrun_on_two_machines_continues_after_one_was_lost(
    recipes: tuple[TrainRecipe, list[float]], tmp_path: Path
):
    """As in Kubernetes: a container that ends with an error is started again, with the same command."""
    recipe, losses = recipes
    [port] = free_ports(1)
    run = {"NNODES": "2", "NPROC_PER_NODE": "1", "RDZV_ENDPOINT": f"localhost:{port}", "OMP_NUM_THREADS": "1"}
    again = 'until "$@"; do sleep 1; done'
    command = ["bash", "-c", again, "machine", LAUNCH / "torchrun.sh", tmp_path / "recipe.yaml"]

    def start() -> psutil.Popen:
        return psutil.Popen(command, env=os.environ | run | {"PATH": PATH})

    machines = [start(), start()]
    try:
        until(lambda: logged_steps(recipe) > recipe.save_steps, "step after the first checkpoint")
        lose(machines[1])
        machines[1] = start()
        for machine in machines:
            assert machine.wait(timeout=600) == 0
    finally:
        for machine in machines:
            lose(machine)
    assert_continued(recipe, losses, 1e-4)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm cluster of two nodes."""
    if missing := [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: slurmctld, slurmd, slurm-client, munge)")
    if os.geteuid():
        pytest.skip("Slurm's daemons start jobs as root only")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: the names of Unix sockets have 107 characters
    for name in ("state", "spool.127.0.0.1", "spool.127.0.0.2"):
        (folder / name).mkdir(parents=True)
    controller, first, second = free_ports(3)
    text = SLURM.format(host=platform.node(), folder=folder, controller=controller, first=first, second=second)
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(DEVICES)
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    files = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munged.log", "seed-file": "munge.seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    commands = [
        ["munged", "--foreground", "--force", f"--pid-file={folder / 'munged.pid'}", *options],
        ["slurmctld", "-D", "-f", str(folder / "slurm.conf")],
        *(["slurmd", "-D", "-N", f"127.0.0.{i}", "-f", str(folder / "slurm.conf")] for i in (1, 2)),
    ]
    with ExitStack() as daemons:
        daemons.callback(shutil.rmtree, folder, ignore_errors=True)
        for command in commands:
            daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            daemons.callback(daemon.wait, timeout=60)
            daemons.callback(daemon.terminate)
            if command[0] == "munged":
                until((folder / "munge.socket").exists, "socket of munged", 30)
        until(lambda: asked("sinfo", "--noheader", "--states=idle", "--format=%D") == "2", "two idle nodes", 60)
        yield


def asked(*command: str) -> str:
    """Return what a command of Slurm prints, or nothing if it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.usefixtures("slurm")
def test_slurm_trains_on_two_nodes_and_continues_a_requeued_job(
    recipes: tuple[TrainRecipe, list[float]], tmp_path: Path
):
    pytest.importorskip("deepspeed")
    recipe, losses = recipes
    log = tmp_path / "job.log"
    environment = os.environ | {"CONFIG": str(LAUNCH / "accelerate" / "zero3_cpu.yaml"), "PATH": PATH}
    environment |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    here = ["--nodes=2", "--gpus-per-node=1", "--cpus-per-task=1", f"--output={log}", "--parsable"]
    script = [str(LAUNCH / "slurm" / "train.sbatch"), str(tmp_path / "recipe.yaml")]
    sent = subprocess.run(["sbatch", *here, *script], env=environment, capture_output=True, text=True, check=True)
    job = sent.stdout.strip()

    def state() -> str:
        """The job's state; nothing after its end."""
        return asked("squeue", "--noheader", f"--job={job}", "--format=%T")

    until(lambda: logged_steps(recipe) > recipe.save_steps or not state(), "step after the first checkpoint")
    assert state() == "RUNNING", log.read_text()
    subprocess.run(["scontrol", "requeue", job], check=True)
    until(lambda: state() == "PENDING", "requeued job", 120)
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
    until(lambda: not state(), "end of the job", 600)
    assert (Path(recipe.output_dir) / "training.json").exists(), log.read_text()
    assert_continued(recipe, losses, 1e-3)


def test_kubernetes_accepts_the_job():
    """By the schemas of the Kubernetes release that the package of the same version has."""
    command = [sys.executable, "-m", "uv", "tool", "run", "kubernetes-validate==1.37.0", "--strict"]
    file = LAUNCH / "kubernetes" / "train.yaml"
    validated = subprocess.run([*command, file], capture_output=True, text=True, check=False)
    assert validated.returncode == 0, validated.stdout + validated.stderr
    assert (validated.stdout + validated.stderr).count(" passed for resource ") == 2
