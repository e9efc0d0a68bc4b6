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
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx

from rag_train.eval.benchmarks.harness import CONTROLLER, benchmark_parser, free_port, mini_world, save
from rag_train.jobs.files import write_records

PRELOADED = ("rag_train.llm.transformers", "rag_train.serving.retriever", "rag_train.retrieval.open")
"""Modules that the fork server imports once, so that a restarted service is up again within a second or two."""
DOWN = 2.0
"""Seconds between the kill of a service and its restart."""
STRATEGY = "deeprag"


def main() -> None:
    from rag_train.progress import console
    from rag_train.retrieval.open import build_index
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
    (world, questions), model = mini_world(), CONTROLLER.resolve()
    write_world(world, work / "world")
    write_records(work / "questions.jsonl", questions[: options.questions])
    build_index("bm25", work / "world/corpus.jsonl", work / "index", lambda done: None)
    multiprocessing.set_forkserver_preload(list(PRELOADED))

    calm = evaluate(work / "calm", work, model, (0.0, options.seed), {})
    console.print(f"undisturbed: {calm.seconds:.0f} s, {calm.answers}")
    due = {name: kill_points(answered, options.kills) for name, (answered, _) in calm.answers.items()}
    hurt = evaluate(work / "disturbed", work, model, (options.garbled, options.seed), due)
    console.print(f"disturbed: {hurt.seconds:.0f} s, {hurt.answers}, kills {dict(hurt.kills)}")
    same, lines = calm.trajectories == hurt.trajectories, hurt.trajectories.splitlines()
    answered = sum(json.loads(line)["error"] is None for line in lines)
    table = Table(
        title="Outages",
        caption=f"{answered:,} of {len(lines):,} questions answered; the evaluation was started {hurt.starts} "
        f"times; the trajectories {'are those of the undisturbed run, byte for byte' if same else 'DIFFER'}.",
        columns=["Service", "Kills", "Garbled answers", "Answers, undisturbed", "Answers, disturbed"],
        rows=[
            [name, str(hurt.kills[name]), f"{garbled:,}", f"{calm.answers[name][0]:,}", f"{answers:,}"]
            for name, (answers, garbled) in hurt.answers.items()
        ],
    )
    runs = [{"seconds": run.seconds, "answers": run.answers, "kills": dict(run.kills)} for run in (calm, hurt)]
    result = {"strategy": STRATEGY, "questions": len(lines), "answered": answered, "identical": same, "runs": runs}
    save(options.output, "outage", result, table)
    sys.exit(not same)


def kill_points(answers: int, kills: int) -> list[float]:
    """Return after how many answers a service is killed: spread over those of an undisturbed run."""
    return [0.9 * (number + 0.5) * answers / kills for number in range(kills)]


@dataclass
class Report:
    """What happened during a run."""

    trajectories: bytes = b""
    seconds: float = 0.0
    answers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Answers and garbled answers of each service."""
    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    """How often the evaluation was started."""


class Service:
    """A service in a process of its own, which is always started at the same address.

    It appends a byte to a log for each answer: ``a`` for an answer, ``g`` for a garbled answer.
    """

    def __init__(self, name: str, log: Path, target: Callable[..., None], *arguments: Any):
        self.name, self.log, self.port = name, log, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._target, self._arguments = target, (self.port, str(log), *arguments)
        log.touch()
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self.process: BaseProcess = context.Process(target=self._target, args=self._arguments, daemon=True)
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

    def answers(self) -> tuple[int, int]:
        """Return the numbers of answers and of garbled answers."""
        written = self.log.read_bytes()
        return written.count(b"a"), written.count(b"g")


def evaluate(
    output: Path, work: Path, model: Path, garbling: tuple[float, int], due: dict[str, list[float]]
) -> Report:
    """Run the evaluation until it succeeds.

    Each service is killed, and started again after a while, when it has given as many answers as ``due`` says; the
    evaluation is killed once, after half of the engine's kills.
    """
    output.mkdir()
    report, begin = Report(), time.monotonic()
    engine = Service("engine", output / "engine.log", serve_engine, *garbling, str(model))
    retriever = Service("retriever", output / "retriever.log", serve_retriever, *garbling, str(work / "index"))
    command = [sys.executable, "-m", "rag_train.cli", "eval", "--model", f"mini={model}"]
    command += ["--engine", "openai", "--url", engine.url, "--index", retriever.url, "--no-instructions"]
    command += ["--questions", f"world={work / 'questions.jsonl'}", "--strategy", STRATEGY]
    command += ["--output", str(output / "matrix")]
    try:
        for service in (engine, retriever):
            service.wait()
        while report.starts < 10:
            report.starts += 1
            with (output / "eval.log").open("ab") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)
            while process.poll() is None:
                time.sleep(0.05)
                for service in (engine, retriever):
                    left = due.get(service.name, [])[report.kills[service.name] :]
                    if left and service.answers()[0] > left[0]:
                        service.kill()
                        time.sleep(DOWN)
                        service.start()
                        report.kills[service.name] += 1
                half = len(due.get("engine", [])) // 2
                if due and report.kills["engine"] > half and not report.kills["evaluation"]:
                    process.kill()
                    report.kills["evaluation"] += 1
            if process.returncode == 0:
                break
        else:
            raise RuntimeError(f"the evaluation fails again and again; see {output / 'eval.log'}")
    finally:
        for service in (engine, retriever):
            service.kill()
    report.seconds = time.monotonic() - begin
    report.answers = {service.name: service.answers() for service in (engine, retriever)}
    cells = (output / "matrix/cells").rglob("*.jsonl")
    (trajectories,) = (path for path in cells if not path.name.endswith(".scores.jsonl"))
    report.trajectories = trajectories.read_bytes()
    return report


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
    from rag_train.retrieval.open import load_index
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
