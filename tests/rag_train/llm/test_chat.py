"""The engine of chat completions, against a server with the protocol's limits and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from support.fakes import elapsed
from support.models import ALL, Chat, asks, asks_all, failed, model_server, opened, polite

from rag_train.errors import UserError
from rag_train.formats.dualrag import REASON
from rag_train.formats.prompting import as_turn
from rag_train.formats.tasks import Task
from rag_train.llm.base import LLM
from rag_train.llm.chat import TURN, ChatTokenizer
from rag_train.llm.replicas import Pace


class Plan(BaseModel):
    steps: list[str]


def solves(url: str, task: Task, **settings: Any) -> Any:
    """Perform a task with an engine over a server and return its parsed answer."""

    async def go(engine: LLM) -> Any:
        prompt = as_turn(engine.tokenizer, "Solve.\n\nQuestion: q\n") + task.lead
        return task.parse((await engine.complete(prompt, task.sampling())).text)

    return opened(go, url, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("can", [ALL, ALL - {"json_schema"}, frozenset()])
@pytest.mark.parametrize("ignores", [True, False])
@pytest.mark.parametrize(
    ("task", "said", "wanted"),
    [
        (Task("a", output=Literal["yes", "no"], max_tokens=4), "Yes.", "yes"),
        (Task("b", output=Plan, max_tokens=90), '```json\n{"steps": ["x"]}\n```', Plan(steps=["x"])),
        (Task("c", output=list[str], max_tokens=90), 'Sure: ["x", "y"] I hope.', ["x", "y"]),
        (Task("d", max_tokens=20), "Answer: Paris\nIt is.", "Paris"),
    ],
)
def test_modules_are_answered_with_and_without_guided_decoding(
    task: Task, said: str, wanted: Any, can: frozenset[str], ignores: bool
):
    def answer(messages: list[dict[str, str]]) -> str:
        if "Solve." not in messages[0]["content"]:
            return polite(messages)
        guided = "json_schema" in can and task.output == list[str]
        return '["x", "y"]' if guided else said

    with model_server(Chat(answer, can, ignores=ignores)) as server:
        assert solves(server.url, task) == wanted


def test_asks_again_in_words_if_an_answer_does_not_fit():
    def answer(messages: list[dict[str, str]]) -> str:
        if "Solve." not in messages[0]["content"]:
            return polite(messages)
        return "I think so." if len(messages) == 1 else "no"

    with model_server(Chat(answer, frozenset())) as server:
        assert solves(server.url, Task("a", output=Literal["yes", "no"], max_tokens=8)) == "no"
    assert server.asked[-1]["messages"][-1]["content"] == "Write only one of these: yes, no."


def test_abilities_are_printed_and_kept(capfd: pytest.CaptureFixture[str]):
    with model_server(Chat(can=frozenset({"json_object"}), reasoning=True)) as server:
        solves(server.url, Task("a"))
    line = "mini: guided decoding json_object, log-probabilities no, continued turns no"
    assert line in " ".join(capfd.readouterr().err.split())
    last = server.asked[-1]
    assert last["max_completion_tokens"] == 256 and not last.keys() & {"max_tokens", "temperature", "logprobs"}


def test_a_continued_turn_is_the_assistants_only_where_the_server_continues_it():
    def sent(can: frozenset[str]) -> list[dict[str, str]]:
        with model_server(Chat(can=can)) as server:
            solves(server.url, Task("a"))
        return server.asked[-1]["messages"]

    asked = "Solve.\n\nQuestion: q"
    assert sent(ALL) == [{"role": "user", "content": asked}, {"role": "assistant", "content": "Answer:"}]
    assert sent(ALL - {"prefix"}) == [{"role": "user", "content": f"{asked}\n\nAnswer:"}]
    turn = as_turn(ChatTokenizer(), f"Question: x{TURN}Answer: y")
    assert turn == f"Question: x Answer: y{TURN}", "a question cannot begin the assistant's turn"


def test_text_is_cut_at_stop_strings_with_its_tokens():
    with model_server(Chat(lambda messages: "\none two three")) as server:
        got = opened(asks("q", stop=("two", "three"), logprobs=2), server.url)
    assert (got.text, got.stop, got.truncated) == ("one ", "two", False)
    assert [token.text for token in got.chosen] == ["\none", " two"]
    assert got.usage.completion_tokens == 3


@pytest.mark.slow
def test_no_answer_is_paid_for_twice(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """A run is interrupted and repeated: only what the first did not get is asked for."""
    settings = {"cache": tmp_path / "answers.db", "input_price": 2.0, "output_price": 1_000_000.0}
    with model_server(Chat()) as server:
        first = opened(asks_all(*"abc"), server.url, **settings)
        probes = len(server.asked) - 3
        assert opened(asks_all(*"abcde"), server.url, **settings)[:3] == first
        assert len(server.asked) == 2 * probes + 5
        assert "mini: 4 calls" in (printed := capfd.readouterr().err) and "$" in printed
        (tmp_path / "notes.db").write_text("mine")
        with pytest.raises(UserError, match=r"notes.db: damaged .*; choose another"):
            opened(asks(), server.url, cache=tmp_path / "notes.db")


def test_calls_are_spaced_to_the_limits():
    async def calls(pace: Pace, amounts: list[int], back: int = 0) -> None:
        for amount in amounts:
            await pace.take(amount)
            pace.give_back(back)

    assert elapsed(calls(Pace(60), [1] * 10)) == pytest.approx(9)
    assert elapsed(calls(Pace(6000), [500] * 3)) == pytest.approx(10)
    assert elapsed(calls(Pace(6000), [500] * 3, back=400)) == pytest.approx(2)
    assert elapsed(calls(Pace(None), [10**9] * 3)) == 0


def test_the_key_goes_only_where_the_user_says(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with model_server(Chat(), key="secret") as server:
        assert opened(asks(), server.url, key="OPENAI_API_KEY").text == "Paris"
        with pytest.raises(UserError, match=r"401, Incorrect API key provided; .* engine.key") as wrong:
            opened(asks(), server.url)
        assert "secret" not in str(wrong.value)
        with pytest.raises(UserError, match=r"engine.key: the environment variable NOTHING has no key"):
            opened(asks(), server.url, key="NOTHING")
    with pytest.raises(UserError, match=r"http://\*\*\*@far.example:8000/v1 would receive the key in clear"):
        opened(asks(), "http://me:pass@far.example:8000", key="OPENAI_API_KEY")


def test_thinking_is_switched_off_or_refused():
    with model_server(Chat(ignores=True)) as server:
        opened(asks(), server.url, thinking=False)
    assert server.asked[-1]["chat_template_kwargs"] == {"enable_thinking": False}
    with model_server(Chat()) as server, pytest.raises(UserError, match="cannot switch thinking off"):
        opened(asks(), server.url, thinking=False)

    def thinks(messages: list[dict[str, str]]) -> str:
        return f"<think> hm\nAnswer: Rome </think>{polite(messages)}"

    with model_server(Chat(thinks, frozenset())) as server:
        assert solves(server.url, Task("a", max_tokens=4), thinking=True) == "Paris"


def test_a_server_that_rejects_everything_is_reported():
    with model_server(lambda body: (400, {}, failed("no"))) as server, pytest.raises(UserError, match="400, no"):
        opened(asks(), server.url)


def test_schemas_keep_their_definitions_at_the_root_and_have_no_limits():
    with model_server(Chat(lambda messages: '[{"steps": []}]')) as server:
        solves(server.url, Task("a", output=list[Plan], max_tokens=64))
    schema = server.asked[-1]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["answer"]["items"] == {"$ref": "#/$defs/Plan"} and "Plan" in schema["$defs"]
    assert json.dumps(schema).count("$defs") == 2
    with model_server(Chat(lambda messages: '{"thought": "hm", "retrieve": false}')) as server:
        solves(server.url, REASON)
    assert "maxLength" not in json.dumps(server.asked[-1]["response_format"])
