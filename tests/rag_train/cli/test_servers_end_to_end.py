"""What comes of servers' answers through the commands: each row of ``tests/cases/servers.jsonl`` is played.

How an engine reads each server's answers is tested in ``tests/rag_train/llm``; here is a row for each way in which
a command can end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.commands import call, small_files
from support.models import Body, ModelServer, Reply, Script, model_server, said
from support.paths import MODEL, ROOT

from rag_train.llm.checkpoint import load_tokenizer
from rag_train.llm.control import control_tokens

ROWS = {row["name"]: row for row in map(json.loads, (ROOT / "tests/cases/servers.jsonl").read_text().splitlines())}
EVERY, ONE = "Is number", "Is number 1,"
"""Texts of requests about all questions, and about one."""


@dataclass(frozen=True)
class Play:
    """A row, the command that meets it, and what must come of it."""

    row: str
    command: str
    """``synth``, or the strategy of an evaluation."""
    on: str = EVERY
    """Text of the requests that are answered with the row."""
    code: int = 0
    says: tuple[str, ...] = ()
    """Parts of what is printed."""
    answers: tuple[str | None, ...] = ()
    engine: str = "chat"


MANY = 3 * ("yes",)
OTHERS = ("yes", None, "yes")
THINKS = ("engine.thinking=true", "engine.thinking_tokens")
LEFT_OUT = "questions refused, which count as wrong (1 of 3: "
FILTER, QUOTE = "content filter (Azure's shape)", "a 400 that quotes the prompt"
PLAYS = [
    Play("cut plan", "synth", code=2, says=("0 records of 3 questions", "rejected: cut 3")),
    Play("trailing comma", "synth", on="", code=2, says=("rejected: not a plan 3",)),
    Play("plan in fences", "synth", says=("3 records of 3 questions",)),
    Play("unclosed thought", "direct", on="", code=2, says=THINKS),
    Play("unclosed thought", "direct", code=2, says=THINKS),
    Play("no log-probabilities", "flare", on="", code=2, says=("--strategy flare: needs log-probabilities",)),
    Play(FILTER, "direct", on=ONE, says=(f"{LEFT_OUT}content filter 1)",), answers=OTHERS),
    Play("half a surrogate pair", "direct", on=ONE, answers=("yes", "Sipodu?", "yes")),
    Play("half a surrogate pair", "synth", code=2, says=("rejected: not a plan 3",)),
    Play(QUOTE, "direct", on=ONE, says=(f"{LEFT_OUT}rejected by the server 1)",), answers=OTHERS),
    Play("no usage", "direct", on="", says=("5 calls without the server's counts",), answers=3 * ("Hucanoth",)),
    Play("control tokens in a passage", "rag", answers=MANY),
    Play("control tokens in a passage", "rag", answers=MANY, engine="openai"),
]


@cache
def tokenizer() -> Any:
    return load_tokenizer(str(MODEL))


def text_of(body: Body) -> str:
    """Return the text of a request, whose prompt may be token ids."""
    prompt = body.get("prompt")
    return tokenizer().decode(prompt) if isinstance(prompt, list) else prompt or json.dumps(body)


def playing(play: Play) -> Script:
    """Return the script of a server of chats, of completions and of passages that plays a row."""
    row = ROWS[play.row]

    def script(body: Body) -> Reply | None:
        if "queries" in body:
            return 200, {}, {"passages": row["body"]["passages"] * len(body["queries"])}
        text = text_of(body)
        if "messages" not in body:
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 5}
            written = " yes" if EVERY in text else " one two three."
            return 200, {}, {"choices": [{"finish_reason": "stop", "text": written}], "usage": usage}
        if row["api"] != "retriever" and play.on in text:
            return int(row["status"]), row.get("headers", {}), row["body"]
        return (
            (200, {}, said("yes", usage={"prompt_tokens": len(text), "completion_tokens": 5}))
            if EVERY in text
            else None
        )

    return script


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return small_files(tmp_path, 3, title="Who")


def arguments(play: Play, place: Path, url: str) -> list[str]:
    """Return the command."""
    own = [f"tokenizer={MODEL}"] if play.engine == "openai" else []
    if play.command != "synth":
        index = url if ROWS[play.row]["api"] == "retriever" else f"{place}/index"
        given = ["--index", index, "--engine", ",".join([play.engine, *own]), "--questions", f"{place}/q.jsonl"]
        given += ["--output", f"{place}/out", "--url", url]
        return ["eval", "--model", "m", "--strategy", play.command, *given]
    limits = ("key", "cache", "requests_per_minute", "tokens_per_minute")
    set_to = [f"engine.kind={play.engine}", f"engine.urls=[{url}]", *(f"engine.{name}=null" for name in limits)]
    set_to += [f"engine.{each}" for each in (*own, "input_price=0", "output_price=0")]
    paths = [f"questions=[{place}/q.jsonl]", "held_out=[]", f"index={place}/index", f"output={place}/out/x.jsonl"]
    recipe = str(ROOT / "recipes/planrag_teacher.yaml")
    return ["synth", "planrag", recipe, "sample=null", "model=m", *set_to, *paths]


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def check_requests(play: Play, server: ModelServer) -> None:
    """Check what was sent."""
    sent = [body for body in server.asked if "queries" not in body]
    if play.row == QUOTE:
        assert all("temperature" in body for body in sent)
    if play.row == "no log-probabilities":
        assert not [body for body in sent if EVERY in text_of(body)]
    if play.row == "control tokens in a passage":
        of_passages = [body for body in sent if "EVIL" in text_of(body)]
        assert len(of_passages) == 3
        special = set(control_tokens(tokenizer()).ids.values())
        for body in of_passages:
            assert not special & set(body["prompt"]) if "prompt" in body else "<|im_end|>" not in text_of(body)


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: f"{play.row}: {play.command}, {play.engine}")
def test_what_must_come_of_a_row_comes(play: Play, place: Path, capsys) -> None:
    with model_server(playing(play)) as server:
        server.models = 200, {}, {"retriever": "r", "max_queries": 100, "data": [{"id": "m"}]}
        code = call(*arguments(play, place, server.url))
    told = capsys.readouterr()
    assert code == play.code, told.err
    assert [part for part in play.says if part not in " ".join((told.out + told.err).split())] == [], told
    check_requests(play, server)
    for path in (*place.glob("out/**/*.json"), *place.glob("out/**/*.jsonl")):
        for text in [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines():
            json.loads(text, parse_constant=refuse)
    lines = [line for path in place.glob("out/cells/**/0.jsonl") for line in path.read_text().splitlines()]
    assert tuple(json.loads(line).get("answer") for line in lines) == play.answers
    records = "".join(path.read_text() for path in place.glob("out/x.jsonl"))
    assert records.count("\n") == (3 if play.command == "synth" and not play.code else 0)


def test_all_rows_are_played() -> None:
    assert {play.row for play in PLAYS} == set(ROWS)
