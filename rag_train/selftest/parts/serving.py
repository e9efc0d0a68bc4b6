"""A trained model, served to others over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request

from rag_train.schema import Question
from rag_train.selftest.parts.retrieval import BM25, WORLD
from rag_train.selftest.parts.training import SINGLE
from rag_train.selftest.registry import part
from rag_train.selftest.work import Work


@part("trained model served", short=True, after=["world and BM25 index", SINGLE])
def served(work: Work) -> str:
    """Serve the model of Stage II with its strategy, and ask it a question as OpenAI's clients do."""
    with (work.folder / WORLD / "dev.jsonl").open(encoding="utf-8") as lines:
        asked = Question.model_validate_json(next(lines))
    engine = ",".join(["vllm", *_flat(work.engine)])
    command = ["serve", "strategy", "deeprag", "--model", str(work.folder / "single-dpo"), "--no-instructions"]
    command += ["--index", str(work.folder / BM25), "--engine", engine, "--port", "0"]
    environment = os.environ | {"COLUMNS": "1000"}
    with subprocess.Popen(
        [sys.executable, "-m", "rag_train.cli", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        address, line = None, ""
        for line in process.stdout:
            print(line, end="", flush=True)
            if address := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        assert address, line.strip() or "the service ended"
        body = {"model": "deeprag", "messages": [{"role": "user", "content": asked.question}]}
        request = urllib.request.Request(
            f"{address[0]}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as reply:
            answer = json.loads(reply.read())
        process.terminate()
        for line in process.stdout:
            print(line, end="", flush=True)
    text = answer["choices"][0]["message"]["content"]
    assert text.strip(), "the answer is empty"
    right = "right" if asked.answers[0] in text else f"accepted would be {asked.answers[0]}"
    return f"{asked.question} {text.strip().splitlines()[-1]} ({right})"


def _flat(settings: dict, prefix: str = "") -> list[str]:
    """Return the settings of an engine as the command line takes them."""
    found = []
    for key, value in settings.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}={value}"]
    return found
