"""The three ends of an item, through the commands: done, refused for good, open."""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from support.commands import call, small_files
from support.fakes import Says
from support.models import CLOSED, Chat, Script, model_server, polite
from support.paths import ROOT

from rag_train.errors import PromptTooLong, Refused
from rag_train.jobs.retries import VARIABLE
from rag_train.llm.base import EngineError


class Filtered(Refused):
    reason = "content filter"


def raising(error: Exception, fits: Callable[[str], bool]) -> Callable[[str], str]:
    """Return an engine's answers: a plan, a short answer, or ``error`` for the prompts that fit."""

    def answer(prompt: str) -> str:
        if fits(prompt):
            raise error
        return "[]" if "DAG" in prompt else " yes"

    return answer


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return small_files(tmp_path, 12)


def answered(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], str], *arguments: str) -> int | str | None:
    """Run a command whose engine gives the answers; return the exit code."""

    @asynccontextmanager
    async def opened(*_):
        yield Says(answer)

    monkeypatch.setattr("rag_train.strategies.kit.open_engine", opened)
    return call(*arguments)


def evaluation(place: Path, index: str = "") -> list[str]:
    paths = ["--questions", str(place / "q.jsonl"), "--output", str(place / "m")]
    return ["eval", "--model", "m", "--strategy", "rag", "--index", index or str(place / "index"), *paths]


def synthesis(place: Path, index: str = "") -> list[str]:
    paths = [f"questions=[{place}/q.jsonl]", "held_out=[]", f"index={index or place / 'index'}"]
    return ["synth", "planrag", str(ROOT / "recipes/planrag_teacher.yaml"), "sample=null", "model=m", *paths]


def rejected(place: Path) -> dict[str, int]:
    return json.loads((place / "out.jsonl.meta.json").read_text())["rejected"]


REFUSALS = [(Filtered("blocked"), "content filter"), (PromptTooLong("9,000 tokens"), "too long")]


@pytest.mark.parametrize(("error", "reason"), REFUSALS)
def test_a_refused_question_blocks_no_other(error: Refused, reason: str, place: Path, monkeypatch, capsys) -> None:
    answer = raising(error, lambda prompt: "number 3," in prompt)
    assert answered(monkeypatch, answer, *evaluation(place)) == 0
    said = capsys.readouterr()
    assert f"which count as wrong: rag (1 of 12: {reason} 1)" in " ".join(said.out.split())
    last = f"m/rag/q/bm25/0: questions refused, which count as wrong (1 of 12: {reason} 1); see the errors in"
    assert any(line.startswith(last) for line in said.err.splitlines()[-2:])
    [cell] = json.loads((place / "m/matrix.json").read_text())["cells"]
    assert cell["summary"]["refused"] == {reason: 1} and cell["summary"]["em"]["mean"] == pytest.approx(11 / 12)

    assert answered(monkeypatch, answer, *synthesis(place), f"output={place}/out.jsonl") == 0
    assert "11 records of 12 questions" in (said := capsys.readouterr().out) and f"rejected: {reason} 1" in said
    assert rejected(place) == {reason: 1}


@pytest.mark.parametrize(("error", "reason"), REFUSALS)
def test_no_scores_if_all_questions_are_refused(
    error: Refused, reason: str, place: Path, monkeypatch, capsys
) -> None:
    answer = raising(error, lambda prompt: True)
    assert answered(monkeypatch, answer, *evaluation(place)) == 2
    assert f"{error}" in (said := capsys.readouterr().err).splitlines()[-1] and "refused" in said
    assert json.loads((place / "m/matrix.json").read_text())["cells"] == []
    assert answered(monkeypatch, answer, *synthesis(place), f"output={place}/out.jsonl") == 2
    assert reason in capsys.readouterr().err.splitlines()[-1]


def test_a_question_stays_open_until_its_service_answers(place: Path, monkeypatch, capsys) -> None:
    down = raising(EngineError("down"), lambda prompt: "number 3," in prompt)
    fine = raising(EngineError("down"), lambda prompt: False)
    for command in (evaluation(place), [*synthesis(place), f"output={place}/out.jsonl"]):
        assert answered(monkeypatch, down, *command) == 2
        assert "11 of 12 questions done, 1 open (down); give the same command again" in capsys.readouterr().err
        assert answered(monkeypatch, fine, *command) == 0


@contextmanager
def retriever(script: Script) -> Iterator[str]:
    """Serve a retrieval service that answers searches by a script, and yield the address."""
    with model_server(script) as server:
        server.models = 200, {}, {"retriever": "r", "max_queries": 100}
        yield server.url


def test_a_retriever_that_hangs_costs_no_more_than_the_patience(place: Path, monkeypatch, capsys) -> None:
    """The client's time limit is a minute an attempt, and there are four of them."""
    over = threading.Event()
    monkeypatch.setenv(VARIABLE, "1")
    with retriever(lambda body: CLOSED if over.wait() else None) as url:
        assert answered(monkeypatch, raising(EngineError(""), lambda prompt: False), *evaluation(place, url)) == 2
        over.set()
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"0 of 12 questions done, 12 open (retrieval service {url}: " in last and f"{VARIABLE}=SECONDS" in last


def test_a_retriever_without_passages_is_said(place: Path, monkeypatch, capsys) -> None:
    with retriever(lambda body: (200, {}, {"passages": [[] for _ in body["queries"]]})) as url:
        assert answered(monkeypatch, raising(EngineError(""), lambda prompt: False), *evaluation(place, url)) == 0
    said = capsys.readouterr()
    assert "no search found a passage: rag (12 of 12)" in " ".join(said.out.split())
    assert "the retriever found no passage for 12 of 12 questions; check the index" in said.err


@pytest.mark.parametrize("command", [evaluation, lambda place: [*synthesis(place), f"output={place}/out.jsonl"]])
def test_a_file_that_cannot_grow_is_one_line(command, place: Path, monkeypatch, capsys) -> None:
    arguments, answer = command(place), raising(EngineError(""), lambda prompt: False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
    try:
        assert answered(monkeypatch, answer, *arguments) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {place}/") and "File too large; raise the limit on the size of files" in last
    assert answered(monkeypatch, answer, *arguments) == 0


@pytest.mark.parametrize(
    ("hangs", "said"),
    [
        ("number 3,", "11 of 12 questions done, 1 open ({}/v1: no answer for "),
        ("", "engine.urls: {}/v1: no answer for "),
    ],
)
def test_a_server_that_hangs_costs_no_more_than_the_patience(
    hangs: str, said: str, place: Path, monkeypatch, capsys
) -> None:
    """Its own time limit is ten minutes."""
    over = threading.Event()

    def answer(messages: list[dict[str, str]]) -> str:
        if hangs in messages[0]["content"]:
            over.wait()
        return polite(messages)

    monkeypatch.setenv(VARIABLE, "5")
    with model_server(Chat(answer)) as server:
        assert call(*evaluation(place), "--engine", "chat", "--url", server.url) == 2
        over.set()
    assert said.format(server.url) in capsys.readouterr().err
