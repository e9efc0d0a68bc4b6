"""The engine of chat completions, against a server with the protocol's limits and errors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from support.chat import ALL, ChatServer, chat_server, error, polite
from support.fakes import elapsed

from rag_train.errors import UserError
from rag_train.formats.dualrag import REASON
from rag_train.formats.prompting import as_turn
from rag_train.formats.tasks import Task
from rag_train.llm import replicas
from rag_train.llm.base import LLM, Completion, EngineError, Sampling
from rag_train.llm.chat import TURN, ChatTokenizer
from rag_train.llm.engines import EngineConfig, open_engine
from rag_train.llm.replicas import Pace


class Plan(BaseModel):
    steps: list[str]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(replicas, "LONGEST_WAIT", 0.05)


def with_engine(server: ChatServer, work: Any, **settings: Any) -> Any:
    """Open an engine on the server, run ``work(engine)`` and return the result."""

    async def go() -> Any:
        config = EngineConfig(kind="chat", urls=[server.url], **settings)
        async with open_engine("gpt", config) as engine:
            return await work(engine)

    return asyncio.run(go())


def ask(task: Task, text: str) -> Any:
    """Return a function that performs a task with an engine and returns its parsed answer."""

    async def go(engine: LLM) -> Any:
        prompt = as_turn(engine.tokenizer, f"Solve.\n\nQuestion: {text}\n") + task.lead
        return task.parse((await engine.complete(prompt, task.sampling())).text)

    return go


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
        if "json_schema" in can and task.output == list[str]:
            return '["x", "y"]'  # what a guided model writes
        return said

    with chat_server(answer=answer, can=can, ignores=ignores) as server:
        assert with_engine(server, ask(task, "q")) == wanted


def test_asks_again_in_words_if_an_answer_does_not_fit():
    def answer(messages: list[dict[str, str]]) -> str:
        if "Solve." not in messages[0]["content"]:
            return polite(messages)
        return "I think so." if len(messages) == 1 else "no"

    with chat_server(answer=answer, can=frozenset()) as server:
        assert with_engine(server, ask(Task("a", output=Literal["yes", "no"], max_tokens=8), "q")) == "no"
    assert server.asked[-1]["messages"][-1]["content"] == "Write only one of these: yes, no."


def test_abilities_are_printed_and_kept(capfd: pytest.CaptureFixture[str]):
    with chat_server(reasoning=True, can=frozenset({"json_object"})) as server:
        with_engine(server, ask(Task("a"), "q"))
    line = "gpt: guided decoding json_object, log-probabilities no, continued turns no"
    assert line in " ".join(capfd.readouterr().err.split())
    last = server.asked[-1]
    assert last["max_completion_tokens"] == 256 and not last.keys() & {"max_tokens", "temperature", "logprobs"}


def test_a_continued_turn_is_the_assistants_only_where_the_server_continues_it():
    def sent(can: frozenset[str]) -> list[dict[str, str]]:
        with chat_server(can=can) as server:
            with_engine(server, ask(Task("a"), "q"))
        return server.asked[-1]["messages"]

    asked = "Solve.\n\nQuestion: q"
    assert sent(ALL) == [{"role": "user", "content": asked}, {"role": "assistant", "content": "Answer:"}]
    assert sent(ALL - {"prefix"}) == [{"role": "user", "content": f"{asked}\n\nAnswer:"}]


def test_a_question_cannot_begin_the_assistants_turn():
    turn = as_turn(ChatTokenizer(), f"Question: x{TURN}Answer: y")
    assert turn == f"Question: x Answer: y{TURN}"


def test_text_is_cut_at_stop_strings_with_its_tokens():
    async def go(engine: LLM) -> Completion:
        return await engine.complete(f"q{TURN}", Sampling(stop=("two", "three"), logprobs=2))

    with chat_server(answer=lambda messages: "\none two three") as server:
        got = with_engine(server, go)
    assert (got.text, got.stop, got.truncated) == ("one ", "two", False)
    assert [token.text for token in got.chosen] == ["\none", " two"]
    assert got.usage.completion_tokens == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failures", "kind", "complaint"),
    [
        ([(429, {"Retry-After": "0"}, "Rate limit reached"), (503, {}, "overloaded")], None, ""),
        ([(500, {}, "oops")], None, ""),
        ([(429, {}, '{"error": {"code": "insufficient_quota", "message": "quota"}}')], UserError, "429, quota"),
        ([(400, {}, "This model's maximum context length is 8 tokens")], ValueError, "maximum context"),
        ([(404, {}, "The model does not exist")], UserError, "404, The model does not exist"),
        ([(200, {}, "{}")], EngineError, "not a completion"),
        ([(200, {}, '{"choices":' + "[" * 100_000)], EngineError, "not a completion"),
        ([(200, {"Content-Encoding": "gzip"}, "{}")], EngineError, "the response cannot be read"),
    ],
)
def test_failures_are_retried_or_reported(failures: list[Any], kind: type[Exception] | None, complaint: str):
    with chat_server() as server:

        async def go(engine: LLM) -> Completion:
            server.failures[:] = failures
            return await engine.complete(f"q{TURN}", Sampling())

        if kind is None:
            assert with_engine(server, go).text == "Paris"
            assert not server.failures
        else:
            with pytest.raises(kind, match=complaint):
                with_engine(server, go)


@pytest.mark.slow
def test_no_answer_is_paid_for_twice(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """A run is interrupted and repeated: only what the first did not get is asked for."""
    settings = {"cache": tmp_path / "answers.db", "input_price": 2.0, "output_price": 1_000_000.0}

    def questions(count: int) -> Any:
        async def go(engine: LLM) -> list[Completion]:
            return [await engine.complete(f"{i}{TURN}", Sampling()) for i in range(count)]

        return go

    with chat_server() as server:
        first = with_engine(server, questions(3), **settings)
        probes = len(server.asked) - 3
        assert with_engine(server, questions(5), **settings)[:3] == first
        assert len(server.asked) == 2 * probes + 5
    assert "gpt: 4 calls" in (printed := capfd.readouterr().err) and "$" in printed
    (tmp_path / "notes.db").write_text("mine")
    with chat_server() as server, pytest.raises(UserError, match=r"notes.db: damaged .*; choose another"):
        with_engine(server, questions(1), cache=tmp_path / "notes.db")


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
    with chat_server(key="secret") as server:
        assert with_engine(server, ask(Task("a"), "q"), key="OPENAI_API_KEY") == "Paris"
        with pytest.raises(UserError, match=r"401, Incorrect API key provided; .* engine.key") as wrong:
            with_engine(server, ask(Task("a"), "q"))
        assert "secret" not in str(wrong.value)
        with pytest.raises(UserError, match=r"engine.key: the environment variable NOTHING has no key"):
            with_engine(server, ask(Task("a"), "q"), key="NOTHING")

    async def open_at(url: str) -> None:
        async with open_engine("gpt", EngineConfig(kind="chat", urls=[url], key="OPENAI_API_KEY")):
            pass

    with pytest.raises(UserError, match=r"http://\*\*\*@far.example:8000/v1 would receive the key in clear"):
        asyncio.run(open_at("http://me:pass@far.example:8000"))


def test_thinking_is_switched_off_or_refused():
    with chat_server(ignores=True) as server:
        with_engine(server, ask(Task("a"), "q"), thinking=False)
    assert server.asked[-1]["chat_template_kwargs"] == {"enable_thinking": False}
    with chat_server() as server, pytest.raises(UserError, match="cannot switch thinking off"):
        with_engine(server, ask(Task("a"), "q"), thinking=False)

    def thinks(messages: list[dict[str, str]]) -> str:
        return f"<think> hm\nAnswer: Rome </think>{polite(messages)}"

    with chat_server(answer=thinks, can=frozenset()) as server:
        assert with_engine(server, ask(Task("a", max_tokens=4), "q"), thinking=True) == "Paris"


def test_a_server_that_rejects_everything_is_reported():
    with chat_server() as server:
        server.failures = [(400, {}, error("no"))] * 20
        with pytest.raises(UserError, match="request rejected, status 400, no"):
            with_engine(server, ask(Task("a"), "q"))


def test_schemas_keep_their_definitions_at_the_root_and_have_no_limits():
    with chat_server(answer=lambda messages: '[{"steps": []}]') as server:
        with_engine(server, ask(Task("a", output=list[Plan], max_tokens=64), "q"))
    schema = server.asked[-1]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["answer"]["items"] == {"$ref": "#/$defs/Plan"} and "Plan" in schema["$defs"]
    assert json.dumps(schema).count("$defs") == 2
    with chat_server(answer=lambda messages: '{"thought": "hm", "retrieve": false}') as server:
        with_engine(server, ask(REASON, "q"))
    assert "maxLength" not in json.dumps(server.asked[-1]["response_format"])
