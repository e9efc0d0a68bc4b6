"""What comes of servers' answers through the commands: each row of ``tests/cases/servers.jsonl`` is played."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.commands import call, small_files
from support.models import Body, ModelServer, Reply, Script, model_server, said
from support.paths import MODEL, ROOT

from rag_train.llm import replicas
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.llm.control import control_tokens

ROWS = {row["name"]: row for row in map(json.loads, (ROOT / "tests/cases/servers.jsonl").read_text().splitlines())}
EVERY, ONE = "Is number", "Is number 1,"
"""Texts of requests about all questions, and about one."""
AZURE = "/deployments/m?api-version=2024-10-21"
END = {"finish_reason": "stop"}
WRITTEN = {
    "deeprag": [
        "Follow up: Who?\nLet's search the question in Wikipedia.\nContext: no\n",
        " good\nSo the final answer is: yes\n",
    ],
    "search-r1": ["<think> hm </think> <search> who </search> <information> no", "<answer> yes </answer>"],
}
"""What a model writes for completions before and after a search."""


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
    below: int = 10**6
    """Only requests with a lower limit of tokens are answered with the row."""
    every: int = 1
    """Only every such request is answered with the row, counted from the first."""


MANY = 3 * ("yes",)
OTHERS = ("yes", None, "yes")
THINKS = ("engine.thinking=true", "engine.thinking_tokens")
LEFT_OUT = "questions refused, which count as wrong (1 of 3: {} 1)"
TOO_LONG = (LEFT_OUT.format("too long"),)
FILTERED = (LEFT_OUT.format("content filter"),)
REJECTED = (LEFT_OUT.format("rejected by the server"),)
HUCANOTH = 3 * ("Hucanoth",)
PLAYS = [
    Play("cut plan", "synth", code=2, says=("0 records of 3 questions", "rejected: cut 3")),
    Play("cut plan", "synth", code=2, says=("0 records of 3 questions", "rejected: cut 3"), engine="openai"),
    Play("trailing comma", "synth", on="", code=2, says=("rejected: not a plan 3",)),
    Play("plan in fences", "synth", says=("3 records of 3 questions",)),
    Play("draft in an unclosed thought", "synth", code=2, says=("unclosed thought", *THINKS)),
    Play("unclosed thought", "direct", on="", code=2, says=THINKS),
    Play("unclosed thought", "direct", code=2, says=THINKS),
    Play("all tokens spent in hidden reasoning", "direct", on="", code=2, says=THINKS),
    Play("all tokens spent in hidden reasoning", "direct", code=2, says=THINKS),
    Play("all tokens spent in hidden reasoning", "cot", below=1000, answers=MANY),
    Play("stop string in matched_stop", "deeprag", answers=MANY, engine="openai"),
    Play("stop string in matched_stop", "search-r1", answers=MANY, engine="openai"),
    Play("no name of the stop string", "deeprag", answers=MANY, engine="openai"),
    Play("no log-probabilities", "flare", on="", code=2, says=("--strategy flare: needs log-probabilities",)),
    Play("no log-probabilities", "dragin", on="", code=2, says=("--strategy dragin: needs attention",)),
    Play(
        "no log-probabilities", "deeprag,threshold=0.3", on="", code=2, says=("log-probabilities", "threshold=0.5")
    ),
    Play("content filter (Azure's shape)", "direct", on=ONE, says=FILTERED, answers=OTHERS),
    Play("context exceeded (Gemini's shape)", "direct", on=ONE, says=TOO_LONG, answers=OTHERS),
    Play("half a surrogate pair", "direct", on=ONE, answers=("yes", "Sipodu?", "yes")),
    Play("half a surrogate pair", "synth", code=2, says=("rejected: not a plan 3",)),
    Play("a 400 that quotes the prompt", "direct", on=ONE, says=REJECTED, answers=OTHERS),
    Play("a 400 that quotes the prompt", "cot", on=ONE, says=REJECTED, answers=OTHERS),
    Play("408", "direct", every=3, answers=MANY),
    Play("unloaded model on one replica", "direct", on="", says=("model m not found",), answers=MANY),
    Play("finish_reason null", "direct", on="", answers=HUCANOTH),
    Play("no usage", "direct", on="", says=("5 calls without the server's counts",), answers=HUCANOTH),
    Play("permanent error with status 200", "direct", on="", code=2, says=("no credits left",)),
    Play("Retry-After 3.5", "direct", every=2, answers=MANY),
    Play(
        "Retry-After of a day",
        "direct",
        on="",
        code=2,
        says=("requests per day; the server asks to wait 86,400 s",),
    ),
    Play("prompt must be text", "direct", on="", says=("prompts sent as text",), answers=MANY, engine="openai"),
    Play("address with a query", "direct", on="", answers=HUCANOTH),
    Play("control tokens in a passage", "rag", answers=MANY),
    Play("control tokens in a passage", "rag", answers=MANY, engine="openai"),
    Play("ids as numbers, extra fields", "rag", answers=MANY),
    Play("score NaN", "rag", answers=MANY),
]


@cache
def tokenizer() -> Any:
    return load_tokenizer(str(MODEL))


def text_of(body: Body) -> str:
    """Return the text of a request, whose prompt may be token ids."""
    prompt = body.get("prompt")
    return tokenizer().decode(prompt) if isinstance(prompt, list) else prompt or json.dumps(body)


def completion(body: Body, strategy: str, shape: Body) -> Body:
    """Return a completion as a model writes it for a strategy, in the shape of a choice."""
    prompt = text_of(body)
    written = WRITTEN.get(strategy, [" yes\n", ""])
    text = written["is good" in prompt.rpartition(EVERY)[2]] if EVERY in prompt else " one two three.\n"
    text = shape["message"]["content"] if "message" in shape else text
    stops = ((text.index(each), each) for each in body.get("stop", ()) if each in text)
    end, stop = min(stops, default=(len(text), None))
    choice = {"finish_reason": shape["finish_reason"], "text": text[:end]}
    choice |= {"matched_stop": stop} if "matched_stop" in shape else {}
    usage = {"prompt_tokens": len(tokenizer()(prompt)["input_ids"]), "completion_tokens": 5}
    return {"choices": [choice], "usage": usage}


def playing(play: Play) -> Script:
    """Return the script of a server of chats, of completions and of passages that plays a row."""
    row, fitting = ROWS[play.row], count(1)

    def fits(body: Body) -> bool:
        if play.row == "prompt must be text":
            return isinstance(body["prompt"], list)
        if row["api"] == "retriever" or play.on not in text_of(body) or body.get("max_tokens", 0) >= play.below:
            return False
        return next(fitting) % play.every == 0

    def script(body: Body) -> Reply | None:
        if "queries" in body:
            passages = row["body"] if isinstance(row["body"], dict) else json.loads(row["body"])
            return 200, {}, {"passages": passages["passages"] * len(body["queries"])}
        fit, chat = fits(body), "messages" in body
        if fit and (chat or row["status"] == 400):
            return int(row["status"]), row.get("headers", {}), row["body"]
        if not chat:
            return 200, {}, completion(body, play.command, row["body"]["choices"][0] if fit else END)
        if EVERY not in text_of(body):
            return None
        return 200, {}, said("yes", usage={"prompt_tokens": len(text_of(body)), "completion_tokens": 5})

    return script


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return small_files(tmp_path, 3, title="Who")


def arguments(play: Play, place: Path, url: str, *others: str) -> list[str]:
    """Return the command."""
    urls = [url + (AZURE if play.row == "address with a query" else ""), *others]
    own = [f"tokenizer={MODEL}"] if play.engine == "openai" else []
    if play.command != "synth":
        index = url if ROWS[play.row]["api"] == "retriever" else f"{place}/index"
        given = ["--index", index, "--engine", ",".join([play.engine, *own]), "--questions", f"{place}/q.jsonl"]
        given += ["--output", f"{place}/out", *(part for each in urls for part in ("--url", each))]
        return ["eval", "--model", "m", "--strategy", play.command, *given]
    limits = ("key", "cache", "requests_per_minute", "tokens_per_minute")
    set_to = [f"engine.kind={play.engine}", f"engine.urls=[{urls[0]}]", *(f"engine.{name}=null" for name in limits)]
    set_to += [f"engine.{each}" for each in (*own, "input_price=0", "output_price=0")]
    paths = [f"questions=[{place}/q.jsonl]", "held_out=[]", f"index={place}/index", f"output={place}/out/x.jsonl"]
    recipe = str(ROOT / "recipes/planrag_teacher.yaml")
    return ["synth", "planrag", recipe, "sample=null", "model=m", *set_to, *paths]


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def check_requests(play: Play, server: ModelServer, waits: list[float]) -> None:
    """Check what was sent."""
    sent = [body for body in server.asked if "queries" not in body]
    if play.row == "a 400 that quotes the prompt":
        assert all("temperature" in body for body in sent)
    if play.row == "address with a query":
        assert set(server.paths) == {AZURE.replace("?", "/chat/completions?")}
    if play.row == "no log-probabilities":
        assert not [body for body in sent if EVERY in text_of(body)]
    if play.row == "control tokens in a passage":
        of_passages = [body for body in sent if "EVIL" in text_of(body)]
        assert len(of_passages) == 3
        special = set(control_tokens(tokenizer()).ids.values())
        for body in of_passages:
            assert not special & set(body["prompt"]) if "prompt" in body else "<|im_end|>" not in text_of(body)
    assert {3.5} == set(waits) if play.row == "Retry-After 3.5" else not set(waits) - {0.0, 86400.0}


@pytest.mark.parametrize("play", PLAYS, ids=lambda play: f"{play.row}: {play.command}, {play.engine}")
def test_what_must_come_of_a_row_comes(play: Play, place: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    read, waits = replicas.retry_after, list[float]()

    def shortened(response: Any) -> float:
        waits.append(read(response) or 0.0)
        return 0.02 if waits[-1] == 3.5 else waits[-1]

    monkeypatch.setattr(replicas, "retry_after", shortened)
    with model_server(playing(play)) as server, model_server() as other:
        server.models = 200, {}, {"retriever": "r", "max_queries": 100, "data": [{"id": "m"}]}
        others = [other.url] if play.row == "unloaded model on one replica" else []
        other.script = playing(replace(play, on="no request has this text"))
        code = call(*arguments(play, place, server.url, *others))
    told = capsys.readouterr()
    assert code == play.code, told.err
    assert [part for part in play.says if part not in " ".join((told.out + told.err).split())] == [], told
    check_requests(play, server, waits)
    for path in (*place.glob("out/**/*.json"), *place.glob("out/**/*.jsonl")):
        for text in [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines():
            json.loads(text, parse_constant=refuse)
    lines = [line for path in place.glob("out/cells/**/0.jsonl") for line in path.read_text().splitlines()]
    assert tuple(json.loads(line).get("answer") for line in lines) == play.answers
    records = "".join(path.read_text() for path in place.glob("out/x.jsonl"))
    assert records.count("\n") == (3 if play.command == "synth" and not play.code else 0)


def test_all_rows_are_played() -> None:
    assert {play.row for play in PLAYS} == set(ROWS)
