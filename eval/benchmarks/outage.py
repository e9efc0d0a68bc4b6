"""An evaluation whose services are killed and answer nonsense (make bench NAME=outage).

`rag-train eval` answers questions of the mini world with a model behind an OpenAI-compatible server and with the
retrieval service. It runs twice: undisturbed, and while

- the engine's server is killed and restarted again and again;
- the retrieval service is killed and restarted again and again;
- a share of the answers of both is garbled: cut off, empty, or not what was asked for;
- the evaluation itself gets SIGKILL once, and is started again with the same command.

The trajectories of both runs must be equal, byte for byte. Writes outage.json and outage.md.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx

from rag_train.eval.benchmarks.harness import benchmark_parser, free_port, mini_world, save
from rag_train.jobs.files import write_records

PRELOADED = ("rag_train.llm.transformers", "rag_train.serving.retriever", "rag_train.retrieval.index.open")
"""Modules that the fork server imports once, so that a restarted service is up again within a second or two."""
DOWN = 2.0
"""Seconds between the kill of a service and its restart."""
STRATEGY = "deeprag"


def main() -> None:
    from rag_train.progress import console
    from rag_train.retrieval.index.open import build_index
    from rag_train.table import Table
    from rag_train.worlds.mini.world import write_world

    parser = benchmark_parser(__doc__)
    parser.add_argument("--questions", type=int, default=1000, help="questions to answer")
    parser.add_argument("--kills", type=int, default=10, help="kills of each service")
    parser.add_argument("--garbled", type=float, default=0.05, help="share of garbled answers")
    parser.add_argument("--seed", type=int, default=0, help="seed of the garbled answers")
    parser.add_argument("--work", type=Path, default=Path("runs/outage"), help="working directory; deleted first")
    options = parser.parse_args()
    work = options.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    world, model, questions = mini_world()
    model = model.resolve()
    write_world(world, work / "world")
    write_records(work / "questions.jsonl", questions[: options.questions])
    build_index("bm25", work / "world/corpus.jsonl", work / "index", lambda done: None)
    multiprocessing.set_forkserver_preload(list(PRELOADED))

    calm = campaign(work / "calm", work, model, Disturbance(0, 0.0, options.seed))
    console.print(f"undisturbed: {calm.seconds:.0f} s, {dict(calm.answers)}")
    totals = {name: calm.answers[f"{name}: answered"] for name in ("engine", "retriever")}
    disturbed = campaign(
        work / "disturbed", work, model, Disturbance(options.kills, options.garbled, options.seed, totals)
    )
    console.print(f"disturbed: {disturbed.seconds:.0f} s, {dict(disturbed.answers)}, kills {dict(disturbed.kills)}")
    same = calm.trajectories == disturbed.trajectories
    answered = sum(json.loads(line)["error"] is None for line in disturbed.trajectories.splitlines())
    console.print(f"{answered:,} questions answered; the trajectories {'are identical' if same else 'DIFFER'}")
    result = {
        "strategy": STRATEGY,
        "questions": len(disturbed.trajectories.splitlines()),
        "answered": answered,
        "identical": same,
        "garbled_share": options.garbled,
        "kills": dict(disturbed.kills),
        "commands": disturbed.commands,
        "seconds": {"undisturbed": calm.seconds, "disturbed": disturbed.seconds},
        "answers": {"undisturbed": dict(calm.answers), "disturbed": dict(disturbed.answers)},
    }
    table = Table(
        title="Outages",
        caption=f"{answered:,} of {result['questions']:,} questions answered; the trajectories "
        f"{'are those of the undisturbed run, byte for byte' if same else 'DIFFER'}.",
        columns=["Service", "Kills", "Garbled answers", "Answers, undisturbed", "Answers, disturbed"],
        rows=[
            [
                name,
                str(disturbed.kills[name]),
                str(disturbed.answers[f"{name}: garbled"]),
                *(f"{run.answers[f'{name}: answered']:,}" for run in (calm, disturbed)),
            ]
            for name in totals
        ],
    )
    save(options.output, "outage", result, table)
    sys.exit(not same)


@dataclass(frozen=True)
class Disturbance:
    """What is done to a run: kills of each service, and the share of garbled answers.

    ``totals`` says how many answers an undisturbed run gets from each service; the kills are spread over them.
    """

    kills: int
    garbled: float
    seed: int
    totals: dict[str, int] = field(default_factory=dict)


@dataclass
class Report:
    """What happened during a run; ``commands`` are the exit codes of the evaluation, in order."""

    trajectories: bytes = b""
    seconds: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    commands: list[int] = field(default_factory=list)


class Service:
    """A service in a process of its own, which is always started at the same address.

    It appends a byte to a log for each answer: ``a`` for an answer, ``g`` for a garbled answer.
    """

    def __init__(self, name: str, log: Path, start: Callable[..., None], *arguments: Any):
        self.name = name
        self.log = log
        self.log.touch()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._target = start
        self._arguments = arguments
        self.start()

    def start(self) -> None:
        self.process: BaseProcess = multiprocessing.get_context("forkserver").Process(
            target=self._target, args=(self.port, str(self.log), *self._arguments), daemon=True
        )
        self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def wait(self) -> None:
        """Wait until the service answers."""
        while True:
            try:
                httpx.get(f"{self.url}/health", timeout=5).raise_for_status()
                return
            except httpx.HTTPError:
                if not self.process.is_alive():
                    raise RuntimeError(f"the {self.name} did not start") from None
                time.sleep(0.2)

    def restart(self) -> None:
        """Kill the service, and start it again after a while."""
        self.kill()
        time.sleep(DOWN)
        self.start()

    def answered(self) -> int:
        """Return the number of answers that were not garbled."""
        return self.log.read_bytes().count(b"a")

    def garbled(self) -> int:
        return self.log.read_bytes().count(b"g")


def campaign(output: Path, work: Path, model: Path, disturbance: Disturbance) -> Report:
    """Run the evaluation until it succeeds, and disturb it."""
    output.mkdir()
    report = Report()
    with services(output, work, model, disturbance) as running:
        command = [sys.executable, "-m", "rag_train.cli", "eval", "--model", f"mini={model}"]
        command += ["--engine", "openai", "--url", running[0].url, "--index", running[1].url, "--no-instructions"]
        command += ["--questions", f"world={work / 'questions.jsonl'}", "--strategy", STRATEGY]
        command += ["--output", str(output / "matrix")]
        begin = time.monotonic()
        while not report.commands or report.commands[-1]:
            if len(report.commands) > 10:
                raise RuntimeError(f"the evaluation fails again and again; see {output / 'eval.log'}")
            report.commands.append(evaluate(command, output / "eval.log", running, disturbance, report))
        report.seconds = time.monotonic() - begin
        for service in running:
            report.answers[f"{service.name}: answered"] = service.answered()
            report.answers[f"{service.name}: garbled"] = service.garbled()
    (trajectories,) = (
        path for path in (output / "matrix/cells").rglob("*.jsonl") if not path.name.endswith(".scores.jsonl")
    )
    report.trajectories = trajectories.read_bytes()
    return report


@contextmanager
def services(output: Path, work: Path, model: Path, disturbance: Disturbance) -> Iterator[Sequence[Service]]:
    """Run the engine and the retrieval service within the block."""
    garbling = (disturbance.garbled, disturbance.seed)
    engine = Service("engine", output / "engine.log", serve_engine, *garbling, str(model))
    retriever = Service("retriever", output / "retriever.log", serve_retriever, *garbling, str(work / "index"))
    try:
        for service in (engine, retriever):
            service.wait()
        yield engine, retriever
    finally:
        for service in (engine, retriever):
            service.kill()


def evaluate(
    command: Sequence[str], log: Path, running: Sequence[Service], disturbance: Disturbance, report: Report
) -> int:
    """Run the command, kill services and the command as planned, and return the exit code."""
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        while process.poll() is None:
            time.sleep(0.05)
            for service in running:
                if due(report.kills[service.name], service.answered(), disturbance, service.name):
                    service.restart()
                    report.kills[service.name] += 1
            if report.kills["engine"] > disturbance.kills // 2 and not report.kills["evaluation"]:
                process.send_signal(signal.SIGKILL)
                report.kills["evaluation"] += 1
    finally:
        process.kill()
        process.wait()
    return process.returncode


def due(kills: int, done: int, disturbance: Disturbance, name: str) -> bool:
    """Whether a service has to be killed, after ``kills`` kills and ``done`` answers."""
    return kills < disturbance.kills and done > 0.9 * (kills + 0.5) * disturbance.totals[name] / disturbance.kills


# --- the services, each in its own process -----------------------------------------------------------------------


def serve_engine(port: int, log: str, garbled: float, seed: int, model: str) -> None:
    """Serve ``model`` with ``POST /v1/completions``, as far as an evaluation without log-probabilities needs it."""
    import torch
    from fastapi import FastAPI

    from rag_train.llm.base import Sampling
    from rag_train.llm.transformers import TransformersEngine

    torch.set_num_threads(1)
    engine = TransformersEngine.start(model, dtype="float32")
    api = FastAPI()

    @api.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @api.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"data": [{"id": model, "object": "model"}]}

    @api.post("/v1/completions")
    async def complete(body: dict[str, Any]) -> dict[str, Any]:
        prompt = str(engine.tokenizer.decode(body["prompt"]))
        sampling = Sampling(max_tokens=body["max_tokens"], stop=tuple(body.get("stop") or ()))
        made = await engine.complete(prompt, sampling)
        choice = {"text": made.text, "stop_reason": made.stop, "token_ids": made.token_ids}
        choice["finish_reason"] = "length" if made.truncated else "stop"
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": made.usage.completion_tokens}
        return {"choices": [choice], "usage": usage}

    run(Garbling(api, "/v1/completions", Path(log), garbled, seed), port)


def serve_retriever(port: int, log: str, garbled: float, seed: int, index: str) -> None:
    """Run the retrieval service on an index."""
    from rag_train.retrieval.index.open import load_index
    from rag_train.serving.retriever import app

    run(Garbling(app(load_index(index)), "/search", Path(log), garbled, seed), port)


def run(api: Any, port: int) -> None:
    import uvicorn

    uvicorn.run(api, host="127.0.0.1", port=port, log_level="error", access_log=False)


class Garbling:
    """An ASGI application that garbles a share of another's answers to ``path``, and logs each answer."""

    def __init__(self, api: Any, path: str, log: Path, share: float, seed: int):
        self._api = api
        self._path = path
        self._log = log
        self._share = share
        self._rng = random.Random(f"{seed}-{os.getpid()}")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != self._path:
            return await self._api(scope, receive, send)
        messages: list[dict[str, Any]] = []

        async def collect(message: dict[str, Any]) -> None:
            messages.append(message)

        await self._api(scope, receive, collect)
        status = messages[0]["status"]
        body = b"".join(message.get("body", b"") for message in messages[1:])
        bad = self._rng.random() < self._share
        if bad:
            body = self._rng.choice([body[: len(body) // 2], b"", b"{}", b"<html>busy</html>", b'{"choices": []}'])
        with self._log.open("ab") as file:
            file.write(b"g" if bad else b"a")
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    main()
