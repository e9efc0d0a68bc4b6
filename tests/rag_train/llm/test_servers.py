"""Servers with ways of their own: the rows of the page "Use any server", played on the loopback address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from support.chat import polite
from support.fakes import Found
from support.paths import MODEL, ROOT
from support.servers import Handler, serving

from rag_train.errors import PromptTooLong, Refused, UserError
from rag_train.jobs.retries import ItemState
from rag_train.llm import replicas
from rag_train.llm.base import LLM, Completion, EngineError, Sampling
from rag_train.llm.chat import TURN
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.llm.engines import EngineConfig, open_engine
from rag_train.llm.problems import Problem
from rag_train.schema import Passage, Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import build

Reply = tuple[int, dict[str, str], Any]
"""Status, headers, and the body, as text or as what is written as JSON."""
Body = dict[str, Any]
USAGE = {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35}
DEEPRAG = [
    "Follow up: Who is X?\nLet's search the question in Wikipedia.\nContext: made up\nIntermediate answer: no\n",
    " Y\nSo the final answer is: Z\n",
]
SEARCH_R1 = [
    "<think> hm </think> <search> who is X </search> <information> </information><answer> no </answer>",
    "<answer> Z </answer> and more",
]
"""What the model writes before and after a search."""


def continued(prompt: str) -> str:
    """Return what the model writes after a prompt."""
    head, asked, text = prompt.rpartition("Question: Who is X?")
    if not asked:
        return " one two three.\n"
    return (SEARCH_R1 if "</search>" in head else DEEPRAG)["X was born in Y." in text]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(replicas, "LONGEST_WAIT", 0.05)


class Played:
    """A server that answers with ``script(body)``, or as a plain server if that is None."""

    def __init__(self, script: Callable[[Body], Reply | None]):
        self.script = script
        self.asked: list[Body] = []
        self.paths: list[str] = []
        self.url = ""
        self.models: Reply = 200, {}, {"data": [{"id": "mini"}]}

    def reply(self, path: str, body: Body) -> Reply:
        self.paths.append(path)
        self.asked.append(body)
        return self.script(body) or (200, {}, said(polite(body["messages"])))

    def since(self, text: str) -> list[Body]:
        """The calls but those of the probe."""
        return [body for body in self.asked if text in json.dumps(body)]


@contextmanager
def playing(script: Callable[[Body], Reply | None] = lambda body: None) -> Iterator[Played]:
    played = Played(script)

    class Plays(Handler):
        def do_GET(self) -> None:
            self._send(played.models)

        def do_POST(self) -> None:
            self._send(played.reply(self.path, json.loads(self.body())))

        def _send(self, reply: Reply) -> None:
            status, headers, body = reply
            self.send(
                status,
                (body if isinstance(body, str) else json.dumps(body)).encode(errors="surrogateescape"),
                headers,
            )

    with serving(Plays) as played.url:
        yield played


def said(content: Any, reason: str | None = "stop", **more: Any) -> Body:
    """Return the body of a chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": reason}
    return {"choices": [choice], "usage": USAGE} | more


def failed(message: str, **more: Any) -> Body:
    return {"error": {"message": message} | more}


def on(text: str, reply: Reply) -> Callable[[Body], Reply | None]:
    """Return a script that answers ``reply`` to requests with ``text``."""
    return lambda body: reply if text in json.dumps(body) else None


def always(body: Any, status: int = 200, **headers: str) -> Callable[[Body], Reply | None]:
    return lambda request: (status, headers, body)


def opened(work: Callable[[LLM], Any], *urls: str, kind: Any = "chat", loop: Any = None, **settings: Any) -> Any:
    """Open an engine over servers, run ``work(engine)`` and return the result."""

    async def go() -> Any:
        async with open_engine("mini", EngineConfig(kind=kind, urls=list(urls), **settings)) as engine:
            return await work(engine)

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(go())


def asks(text: str = "What?", **sampling: Any) -> Callable[[LLM], Any]:
    """Return a function that asks an engine a question."""
    return lambda engine: engine.complete(f"{text}{TURN}", Sampling(**sampling))


def asks_all(*texts: str) -> Callable[[LLM], Any]:
    """Return a function that asks an engine several questions and returns their answers or errors."""

    async def go(engine: LLM) -> list[Any]:
        made = (engine.complete(f"{text}{TURN}", Sampling()) for text in texts)
        return await asyncio.gather(*made, return_exceptions=True)

    return go


def refusal_of(*urls: str) -> str:
    """Return the one line with which a run on the servers is refused before its first question."""
    with pytest.raises(UserError) as caught:
        opened(asks(), *urls)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def printed(capfd: pytest.CaptureFixture[str]) -> str:
    return " ".join(capfd.readouterr().err.split())


# Completions: the same model behind six servers.


def vllm(body: Body, text: str, end: int, stop: str | None) -> Body:
    return {"text": text[:end], "finish_reason": "stop", "stop_reason": stop}


def sglang(body: Body, text: str, end: int, stop: str | None) -> Body:
    return {"text": text[:end], "finish_reason": "stop", "matched_stop": stop or 0}


def lmdeploy(body: Body, text: str, end: int, stop: str | None) -> Body:
    included = len(stop or "") if body.get("include_stop_str_in_output") else 0
    return {"text": text[: end + included], "finish_reason": "stop"}


def llama_cpp(body: Body, text: str, end: int, stop: str | None) -> Body:
    return {"text": text[:end], "finish_reason": "stop"}


def deaf(body: Body, text: str, end: int, stop: str | None) -> Body:
    """Stops where DeepRAG and Search-R1 ask, but not at the stop strings of the probe."""
    known = any(len(each) > 5 for each in body.get("stop", ()))
    return {"text": text[:end] if known else text, "finish_reason": "stop"}


def openai(body: Body, text: str, end: int, stop: str | None) -> Body | Reply:
    known = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "logprobs"}
    if unknown := sorted(body.keys() - known - {"presence_penalty", "frequency_penalty"}):
        return 400, {}, failed(f"Unrecognized request argument supplied: {unknown[0]}")
    return {"text": text[:end], "finish_reason": "stop"}


def tgi(body: Body, text: str, end: int, stop: str | None) -> Body | Reply:
    if isinstance(body["prompt"], list):
        return 422, {}, "Failed to deserialize the JSON body: prompt: invalid type: sequence, expected a string"
    return {"text": text[: end + len(stop or "")], "finish_reason": "stop_sequence" if stop else "eos_token"}


Maker = Callable[[Body, str, int, "str | None"], "Body | Reply"]
MAKERS: dict[str, Maker] = {
    "vLLM": vllm,
    "SGLang": sglang,
    "LMDeploy": lmdeploy,
    "llama.cpp": llama_cpp,
    "some stop strings only": deaf,
    "OpenAI": openai,
    "TGI": tgi,
}


def completions_of(maker: Maker) -> Callable[[Body], Reply]:
    """Return the script of a server of completions, with the counts of the model's tokenizer."""
    tokenizer = load_tokenizer(str(MODEL))

    def script(body: Body) -> Reply:
        prompt = body["prompt"] if isinstance(body["prompt"], str) else str(tokenizer.decode(body["prompt"]))
        text = continued(prompt)
        stops = [(text.index(stop), stop) for stop in body.get("stop", ()) if stop in text]
        end, stop = min(stops, default=(len(text), None))
        choice = maker(body, text, end, stop)
        if isinstance(choice, tuple):
            return choice
        usage = {"prompt_tokens": len(tokenizer(prompt)["input_ids"]), "completion_tokens": 5}
        return 200, {}, {"choices": [choice], "usage": usage}

    return script


def trajectory_on(maker: Maker, strategy: str) -> Trajectory:
    async def work(engine: LLM) -> Trajectory:
        kit = Kit(engine, Found([Passage(id="p", title="X", text="X was born in Y.")]))
        return await build(strategy, kit).answer(Question(id="q", question="Who is X?", answers=["Z"]))

    with playing(completions_of(maker)) as server:
        return opened(work, server.url, kind="openai", tokenizer=str(MODEL))


@pytest.mark.parametrize("strategy", ["deeprag", "search-r1"])
@pytest.mark.parametrize("server", MAKERS)
def test_a_strategy_searches_whatever_the_server_says_of_stop_strings(server: str, strategy: str):
    got, wanted = trajectory_on(MAKERS[server], strategy), trajectory_on(vllm, strategy)
    assert got.retrievals == 1 and got.answer == "Z"
    assert got.model_copy(update={"calls": []}) == wanted.model_copy(update={"calls": []})


@pytest.mark.parametrize("count", [{"usage": USAGE}, {}], ids=["Ollama", "Ollama with its cache"])
def test_a_server_that_reads_other_tokens_in_text_is_refused_with_a_remedy(count: Body):
    """Ollama takes text only, puts it into the model's chat template, and tells no count of what it has cached."""

    def ollama(body: Body) -> Reply:
        if isinstance(body["prompt"], list):
            return 400, {}, failed("json: cannot unmarshal array into Go struct field .prompt of type string")
        return 200, {}, {"choices": [{"text": " yes", "finish_reason": "stop"}]} | count

    with playing(ollama) as server, pytest.raises(UserError, match=r"prompts as text only.*give --engine chat"):
        opened(asks(), server.url, kind="openai", tokenizer=str(MODEL))


def test_a_prompt_whose_text_would_be_read_as_a_control_token_is_not_sent_as_text(monkeypatch: pytest.MonkeyPatch):
    """The engine's own tokens of such a text are plain ones."""

    def plain(tokenizer: Any, prompt: str) -> list[int]:
        return tokenizer(prompt, split_special_tokens=True)["input_ids"]

    monkeypatch.setattr("rag_train.llm.openai.encode", plain)
    with playing(completions_of(tgi)) as server:
        got = opened(asks_all("x", "<|endoftext|> x"), server.url, kind="openai", tokenizer=str(MODEL))
    assert isinstance(got[0], Completion) and isinstance(got[1], Refused) and got[1].reason == "impossible text"
    assert not server.since("endoftext")


def test_log_probabilities_of_llama_cpp_are_read():
    tokens = [
        {"id": 5, "token": "x", "logprob": -0.5, "top_logprobs": [{"id": 6, "token": "", "logprob": -1.0}]},
        {"id": 7, "token": "y", "logprob": -0.1, "top_logprobs": [{"id": 8, "token": "z", "logprob": None}]},
    ]

    def script(body: Body) -> Reply:
        choice = {"text": "xy", "finish_reason": "stop", "logprobs": {"content": tokens}}
        return 200, {}, {"choices": [choice], "usage": USAGE}

    with playing(script) as server:
        got = opened(asks(logprobs=2), server.url, kind="openai", tokenizer=str(MODEL))
    assert got.token_ids == (5, 7)
    read = [[(token.token_id, token.logprob) for token in step] for step in got.logprobs]
    assert read == [[(5, -0.5), (6, -1.0)], [(7, -0.1)]]


@pytest.mark.parametrize("models", [(200, {}, [{"id": "mini"}]), (404, {}, "no such page"), (405, {}, "")])
def test_lists_of_models_are_read_or_done_without(models: Reply):
    """Together's list stands alone, and some servers have none."""
    with playing(completions_of(vllm)) as server:
        server.models = models
        assert opened(asks(), server.url, kind="openai", tokenizer=str(MODEL)).text == " one two three.\n"


@pytest.mark.parametrize(
    ("read", "whole"),
    [
        (lambda sent: sent, True),
        (lambda sent: min(sent, 300), False),
        (lambda sent: min(sent, 40), True),
        (lambda sent: 7, True),
    ],
)
def test_a_prompt_that_the_server_cut_gets_no_answer(read: Callable[[int], int], whole: bool):
    """A server that counts otherwise in the probe too, or less than any context has room for, is believed."""

    def script(body: Body) -> Reply:
        choice = {"text": " yes", "finish_reason": "stop"}
        return 200, {}, {"choices": [choice], "usage": {"prompt_tokens": read(len(body["prompt"]))}}

    with playing(script) as server:
        [got] = opened(asks_all("word " * 500), server.url, kind="openai", tokenizer=str(MODEL))
    assert isinstance(got, Completion if whole else PromptTooLong)


# Chat completions.


@pytest.mark.parametrize(
    ("server", "body", "text"),
    [
        ("Mistral", said([{"type": "thinking", "thinking": []}, {"type": "text", "text": "Hucanoth"}]), "Hucanoth"),
        ("Cohere", said("Hucanoth", "COMPLETE"), "Hucanoth"),
        ("TGI", said("Hucanoth", "eos_token"), "Hucanoth"),
        ("Together", said("Hucanoth", "eos"), "Hucanoth"),
        ("Anthropic", said("Hucanoth", "end_turn"), "Hucanoth"),
        ("finish_reason null", said("Hucanoth", None), "Hucanoth"),
        ("no usage", said("Hucanoth", usage=None), "Hucanoth"),
        ("half a surrogate pair", json.dumps(said("Sipodu\ud83d")), "Sipodu?"),
        ("half a character", json.dumps(said("Sipodu_")).replace("_", "\udcf0"), "Sipodu\ufffd"),
        ("llama.cpp", said("<think>\nhm\n</think>\n\nHucanoth"), "Hucanoth"),
        ("Magistral", said("[THINK]hm[/THINK]Hucanoth"), "Hucanoth"),
        ("DeepSeek-R1", said("The user asks hm</think>\nHucanoth"), "Hucanoth"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_answers_of_all_shapes_are_read(server: str, body: Any, text: str):
    with playing(on("What?", (200, {}, body))) as played:
        got = opened(asks(), played.url)
    assert (got.text, got.truncated) == (text, False)
    json.dumps(got.text).encode()


def test_an_answer_without_a_reason_to_end_is_cut_if_it_is_as_long_as_allowed():
    with playing(on("What?", (200, {}, said("Hucanoth", None)))) as server:
        assert opened(asks(max_tokens=5), server.url).truncated
    with playing(on("What?", (200, {}, said("Hucanoth", "suspended")))) as server:
        [got] = opened(asks_all("What?"), server.url)
    assert isinstance(got, EngineError) and "finish_reason 'suspended' says not whether" in str(got)


def test_a_cut_plan_stays_cut():
    plan = '[{"id": "Q1.1", "question": "Who?", "parents": []}, {"id'
    schema = json.dumps({"type": "array", "items": {}})
    with playing(on("What?", (200, {}, said(plan, "length")))) as server:
        got = opened(asks(json_schema=schema, max_tokens=512), server.url)
    assert (got.text, got.truncated, len(server.since("What?"))) == (plan, True, 1)


REFUSALS = {
    "Azure": (400, failed("filtered by the policy", code="content_filter", innererror={"code": "Policy"})),
    "DeepSeek": (400, failed("Content Exists Risk", type="invalid_request_error")),
    "OpenRouter": (403, failed("Input was flagged", code=403, metadata={"reasons": ["violence"]})),
    "DashScope": (400, failed("Input data may be inappropriate", code="data_inspection_failed")),
    "content filter with status 200": (200, failed("blocked by a guardrail", code=400)),
    "finish_reason content_filter": (200, said(None, "content_filter")),
    "Gemini's filter": (200, said("", "PROHIBITED_CONTENT")),
}
TOO_LONG = {
    "OpenAI": (400, failed("This model's maximum context length is 8192 tokens", code="context_length_exceeded")),
    "vLLM": (
        400,
        {
            "object": "error",
            "message": "'max_tokens' is too large: 64. The maximum context length is 512 tokens and"
            " the request has 500",
            "type": "BadRequestError",
            "param": "max_tokens",
            "code": 400,
        },
    ),
    "llama.cpp": (400, failed("33056 tokens asked for, 32768 available", type="exceed_context_size_error")),
    "old llama.cpp": (500, failed("the request exceeds the available context size", code=500)),
    "TGI": (
        422,
        {
            "error": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20",
            "error_type": "validation",
        },
    ),
    "Anthropic": (400, failed("prompt too long: 210000 tokens, maximum 200000", type="invalid_request_error")),
    "Gemini": (
        400,
        [failed("1048577 input tokens, maximum 1048576", code=400, status="INVALID_ARGUMENT")],
    ),
    "Groq": (413, failed("tokens a minute: limit 6000, requested 7000", type="tokens", code="rate_limit_exceeded")),
    "OpenAI's limit of a minute": (429, failed("Request too large on tokens per min: Limit 1000, Requested 1200.")),
    "Mistral": (
        400,
        {
            "object": "error",
            "message": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
            "code": "3051",
        },
    ),
    "Bedrock": (400, {"message": "Input is too long for requested model."}),
    "a proxy": (413, "<html>Request Entity Too Large</html>"),
    "OpenRouter": (
        400,
        failed("Provider returned error", metadata={"raw": json.dumps({"message": "prompt is too long"})}),
    ),
}


@pytest.mark.parametrize(
    ("reason", "status", "body"),
    [
        pytest.param(reason, status, body, id=f"{reason}: {server}")
        for reason, each in (("content filter", REFUSALS), ("too long", TOO_LONG))
        for server, (status, body) in each.items()
    ]
    + [
        pytest.param("impossible text", 400, failed("invalid unicode in the body"), id="impossible text"),
        pytest.param("refused by the model", 200, said(None, refusal="no"), id="refusal beside the text"),
        pytest.param("no text", 200, said(None, "tool_calls"), id="a tool's call"),
        pytest.param("rejected by the server", 400, failed("computer says no"), id="any other"),
        pytest.param("rejected by the server", 422, {"detail": [{"loc": ["body"], "msg": "no"}]}, id="FastAPI"),
    ],
)
def test_a_refused_prompt_has_a_reason_and_the_others_are_answered(reason: str, status: int, body: Any):
    if reason == "refused by the model":
        body["choices"][0]["message"]["refusal"] = body.pop("refusal")
    with playing(on("bad", (status, {}, body))) as server:
        bad, good, *_ = opened(asks_all("bad", "good", "What?"), server.url)
    assert (
        isinstance(bad, Refused)
        and bad.reason == reason
        and isinstance(bad, PromptTooLong) == (reason == "too long")
    )
    assert good.text == "Paris"
    assert len([body for body in server.asked if "bad" in json.dumps(body)]) == 1


@pytest.mark.parametrize(
    "message", ["the value is not allowed", "Limit 5000, Used 4900, Requested 200", "rate limit", "max_tokens: 10"]
)
def test_other_words_are_not_about_the_length(message: str):
    assert Problem(429, message, message.lower()).refusal is None
    assert Problem(400, message, "the value is not allowed").refusal is None


def test_an_error_of_all_requests_is_no_refusal_of_a_prompt():
    """The server rejects a setting: a short question with it is rejected too."""
    with playing() as server:

        async def work(engine: LLM) -> Any:
            server.script = lambda body: (400, {}, failed("computer says no")) if "logprobs" in body else None
            return await asks_all("a")(engine), await asyncio.gather(
                *(engine.complete(f"{i}{TURN}", Sampling(logprobs=1)) for i in range(3)), return_exceptions=True
            )

        [answered], rejected = opened(work, server.url)
    assert answered.text == "Paris"
    assert all(isinstance(each, UserError) and "computer says no" in str(each) for each in rejected)


def test_a_rejection_that_quotes_the_prompt_takes_nothing_from_other_requests():
    quoted = failed('prompt refused: "What temperature and seed, in response_format json_schema?"')
    with playing(on("temperature and seed", (400, {}, quoted))) as server:
        work = asks_all("What temperature and seed?", "a", "b")
        refused, *others = opened(work, server.url)
    assert isinstance(refused, Refused) and [each.text for each in others] == ["Paris"] * 2
    assert all(body["temperature"] == 0.0 for body in server.asked)


def test_a_rejected_schema_is_asked_for_in_words_by_that_call_alone():
    bad, good = (
        json.dumps({"type": "object", "properties": {name: {"type": "string"}}}) for name in ("bad", "good")
    )

    def script(body: Body) -> Reply | None:
        if "bad" in json.dumps(body.get("response_format", {})):
            return 400, {}, failed("Invalid schema", param="response_format")
        if "Is this" in json.dumps(body):
            return 200, {}, said('{"test": "yes"}')
        return 200, {}, said('{"bad": "x"}' if "bad" in json.dumps(body) else '{"good": "x"}')

    async def work(engine: LLM) -> list[str]:
        return [(await engine.complete(f"q{TURN}", Sampling(json_schema=each))).text for each in (bad, good)]

    with playing(script) as server:
        assert opened(work, server.url) == ['{"bad": "x"}', '{"good": "x"}']
    assert "response_format" in server.asked[-1]


@pytest.mark.parametrize(
    ("complaint", "field"),
    [
        (failed("Unsupported parameter", param="temperature", code="unsupported_parameter"), "temperature"),
        (failed("Unrecognized request argument supplied: seed"), "seed"),
        ({"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs"}]}, "seed"),
        ([failed('Invalid JSON payload received. Unknown name "seed": Cannot find field.')], "seed"),
        (failed("Argument not supported on this model: logprobs"), "logprobs"),
    ],
    ids=["OpenAI", "Azure", "FastAPI", "Gemini", "xAI"],
)
def test_a_field_is_given_up_in_the_probe_and_this_is_said(complaint: Any, field: str, capfd):
    def script(body: Body) -> Reply | None:
        return (400, {}, complaint) if field in body else None

    with playing(script) as server:
        assert opened(asks(seed=1, logprobs=1), server.url).text == "Paris"
    assert field not in server.asked[-1]
    said_of = {"logprobs": "log-probabilities no"}.get(field, f"no {field}")
    assert said_of in printed(capfd)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 502, 503, 504, 520, 529])
def test_what_may_succeed_later_is_tried_again(status: int):
    calls = []

    def script(body: Body) -> Reply | None:
        calls.append(body)
        return (status, {}, failed("later")) if len(calls) % 3 == 0 else None

    with playing(script) as server:
        assert [each.text for each in opened(asks_all(*"abcdef"), server.url)] == ["Paris"] * 6


def test_a_replica_without_the_model_is_named_and_left_out(capfd):
    with playing(always(failed("model m not found"), 404)) as first, playing() as second:
        got = opened(asks_all(*"abcd"), first.url, second.url)
        assert [each.text for each in got] == ["Paris"] * 4
    line = printed(capfd)
    assert line.count(f"{first.url}/v1: status 404, model m not found; its calls go to the other servers") == 1
    with playing(always(failed("model m not found"), 404)) as first, playing(first.script) as second:
        assert "request rejected, status 404, model m not found" in refusal_of(first.url, second.url)


@pytest.mark.parametrize("code", [402, "402", "insufficient_credits"])
def test_a_permanent_error_with_status_200_ends_with_the_servers_reason(code: Any):
    with playing(always(failed("no credits left", code=code))) as server:
        assert "no credits left" in refusal_of(server.url)


def test_an_error_within_a_choice_is_tried_again_later():
    choice = {"message": {"role": "assistant", "content": ""}, "error": {"message": "upstream", "code": 502}}
    replies = [(200, {}, {"choices": [choice | {"finish_reason": "error"}]})]
    with playing(lambda body: replies.pop() if replies and "What?" in json.dumps(body) else None) as server:
        assert opened(asks(), server.url).text == "Paris"


def in_seconds(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose sleeps only set its clock forward."""

    slept: list[float]

    def time(self) -> float:
        return super().time() + sum(getattr(self, "slept", ()))


@pytest.mark.parametrize("value", ["3.5", ""], ids=["number", "date"])
def test_a_short_wait_is_waited(value: str, monkeypatch: pytest.MonkeyPatch):
    replies = [(429, {"Retry-After": value or in_seconds(900)}, failed("rate limit"))]
    monkeypatch.setattr(replicas, "current", lambda: ItemState(retry_for=1000.0))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        slept.append(seconds)
        loop.slept = slept

    monkeypatch.setattr(replicas.asyncio, "sleep", sleep)
    with playing(lambda body: replies.pop() if replies else None) as server:
        assert opened(asks(), server.url, loop=JumpingLoop).text == "Paris"
    least = 3.4 if value else 800
    assert least <= max(slept) <= 1.5 * least


@pytest.mark.parametrize("value", ["86400", ""], ids=["number", "date"])
def test_a_wait_of_a_day_ends_the_call_at_once(value: str):
    reply = (429, {"Retry-After": value or in_seconds(86400)}, failed("requests per day"))
    with playing(on("What?", reply)) as server:
        [got] = opened(asks_all("What?"), server.url)
        assert "requests per day; the server asks to wait 86," in str(got)
        assert isinstance(got, EngineError) and got.wait > 86_000
    with playing(always(reply[2], 429, **reply[1])) as server:
        assert "requests per day; the server asks to wait" in refusal_of(server.url)


# Thoughts.


HIDDEN = said("", "length", usage=USAGE | {"completion_tokens_details": {"reasoning_tokens": 5}})
UNCLOSED = said("<think>\nOkay, the user asks something. So the answer could be", "length")


@pytest.mark.parametrize("body", [HIDDEN, UNCLOSED, said("", "length")], ids=["hidden", "unclosed", "no trace"])
def test_a_model_whose_thoughts_take_all_tokens_is_refused_with_the_setting(body: Body):
    with playing(always(body)) as server:
        refusal = refusal_of(server.url)
    assert "thinks before it answers" in refusal and "engine.thinking=true" in refusal


@pytest.mark.parametrize("body", [HIDDEN, UNCLOSED], ids=["hidden", "unclosed"])
@pytest.mark.parametrize("when", ["", "What?"])
def test_a_model_that_thinks_gets_tokens_for_it(body: Body, when: str, capfd):
    """Whether its thoughts show in the probe, or only in a later call."""

    def script(body_: Body) -> Reply | None:
        return (200, {}, body) if body_["max_tokens"] < 1100 and when in json.dumps(body_) else None

    with playing(script) as server:
        got = opened(asks(), server.url)
        assert (got.text, got.truncated) == ("Paris", False)
    assert when or "the model thinks, with 8,192 tokens for it" in printed(capfd)


@pytest.mark.parametrize("body", [HIDDEN, UNCLOSED], ids=["hidden", "unclosed"])
def test_a_thought_is_never_an_answer(body: Body):
    with playing(on("What?", (200, {}, body))) as server:
        [got] = opened(asks_all("What?"), server.url, thinking=True)
    assert isinstance(got, Refused) and got.reason == "unclosed thought" and "engine.thinking_tokens" in str(got)


def test_thoughts_outside_the_written_tokens_are_not_taken_for_a_full_context():
    gemini = said("Hucan", "length", usage={"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 75})
    with playing(on("What?", (200, {}, gemini))) as server:
        got = opened(asks(), server.url)
    assert (got.text, got.truncated, got.usage.completion_tokens) == ("Hucan", True, 66)


def test_the_text_of_a_wrapped_answer_is_cut_in_itself():
    wrapped = json.dumps({"answer": "complex question"}, indent=8)

    def script(body: Body) -> Reply | None:
        return 200, {}, said('{"test": "yes"}' if "Is this" in json.dumps(body) else wrapped)

    with playing(script) as server:
        choices = (" simple question", " complex question")
        assert opened(asks(choice=choices, stop=("\n",)), server.url).text == " complex question"


# Addresses, and the page.


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/completions/", "/v1/chat/completions"),
        ("/v1/models", "/v1/chat/completions"),
        ("/deployments/m?api-version=2024-10-21", "/deployments/m/chat/completions?api-version=2024-10-21"),
        ("/d/m/chat/completions?api-version=1", "/d/m/chat/completions?api-version=1"),
        ("/models?api-version=1", "/models/chat/completions?api-version=1"),
    ],
)
def test_addresses_are_taken_as_people_have_them(address: str, path: str):
    with playing() as server:
        opened(asks(), server.url + address)
    assert set(server.paths) == {path}


def test_every_server_of_the_page_has_a_test():
    table = (ROOT / "docs/site/howto/servers.md").read_text().partition("## Servers")[2].partition("\n## ")[0]
    servers = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")][2:]
    tests = Path(__file__).read_text()
    assert len(servers) > 10 and [name for name in servers if f'"{name}"' not in tests] == []
