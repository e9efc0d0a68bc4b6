"""Servers with ways of their own: what the page "Use any server" promises, played on the loopback address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.fakes import Found
from support.models import USAGE, Body, Reply, Script, asks, asks_all, failed, model_server, on, opened, said
from support.paths import MODEL, ROOT

from rag_train.errors import PromptTooLong, Refused, UserError
from rag_train.llm.base import LLM, Completion, EngineError, Sampling
from rag_train.llm.chat import TURN
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.llm.problems import Problem
from rag_train.schema import Passage, Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import build

OWN: dict[str, Any] = {"kind": "openai", "tokenizer": str(MODEL)}
"""Settings of the engine over completions."""
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


def refusal_of(*urls: str) -> str:
    """Return the one line with which a run on the servers is refused before its first question."""
    with pytest.raises(UserError) as caught:
        opened(asks(), *urls)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def printed(capfd: pytest.CaptureFixture[str]) -> str:
    return " ".join(capfd.readouterr().err.split())


SERVERS = ("vLLM", "SGLang", "LMDeploy", "llama.cpp", "some stop strings only", "OpenAI", "TGI")
"""Servers of completions, each with its own way to tell of stop strings."""


def choice_of(server: str, body: Body, text: str, end: int, stop: str | None) -> Body | Reply:
    """Return how a server tells that its model has written ``text`` up to a stop string at ``end``."""
    whole, plain = end + len(stop or ""), {"text": text[:end], "finish_reason": "stop"}
    match server:
        case "vLLM":
            return plain | {"stop_reason": stop}
        case "SGLang":
            return plain | {"matched_stop": stop or 0}
        case "LMDeploy" if body.get("include_stop_str_in_output"):
            return plain | {"text": text[:whole]}
        case "some stop strings only" if all(len(each) <= 5 for each in body.get("stop", ())):
            return plain | {"text": text}  # it stops where DeepRAG and Search-R1 ask, but not in the probe
        case "OpenAI":
            known = {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "logprobs"}
            if unknown := sorted(body.keys() - known - {"presence_penalty", "frequency_penalty"}):
                return 400, {}, failed(f"Unrecognized request argument supplied: {unknown[0]}")
        case "TGI" if isinstance(body["prompt"], list):
            return 422, {}, "Failed to deserialize the JSON body: prompt: invalid type: sequence, expected a string"
        case "TGI":
            return {"text": text[:whole], "finish_reason": "stop_sequence" if stop else "eos_token"}
    return plain


def completions_of(server: str) -> Script:
    """Return the script of a server of completions, with the counts of the model's tokenizer."""
    tokenizer = load_tokenizer(str(MODEL))

    def script(body: Body) -> Reply:
        prompt = body["prompt"] if isinstance(body["prompt"], str) else str(tokenizer.decode(body["prompt"]))
        text = continued(prompt)
        stops = [(text.index(stop), stop) for stop in body.get("stop", ()) if stop in text]
        end, stop = min(stops, default=(len(text), None))
        choice = choice_of(server, body, text, end, stop)
        if isinstance(choice, tuple):
            return choice
        usage = {"prompt_tokens": len(tokenizer(prompt)["input_ids"]), "completion_tokens": 5}
        return 200, {}, {"choices": [choice], "usage": usage}

    return script


def trajectory_on(server: str, strategy: str) -> Trajectory:
    async def work(engine: LLM) -> Trajectory:
        kit = Kit(engine, Found([Passage(id="p", title="X", text="X was born in Y.")]))
        return await build(strategy, kit).answer(Question(id="q", question="Who is X?", answers=["Z"]))

    with model_server(completions_of(server)) as served:
        return opened(work, served.url, **OWN)


@pytest.mark.parametrize("strategy", ["deeprag", "search-r1"])
@pytest.mark.parametrize("server", SERVERS)
def test_a_strategy_searches_whatever_the_server_says_of_stop_strings(server: str, strategy: str):
    got, wanted = trajectory_on(server, strategy), trajectory_on("vLLM", strategy)
    assert got.retrievals == 1 and got.answer == "Z"
    assert got.model_copy(update={"calls": []}) == wanted.model_copy(update={"calls": []})


@pytest.mark.parametrize("count", [{"usage": USAGE}, {}], ids=["Ollama", "Ollama with its cache"])
def test_a_server_that_reads_other_tokens_in_text_is_refused_with_a_remedy(count: Body):
    """Ollama takes text only, puts it into the model's chat template, and tells no count of what it has cached."""

    def ollama(body: Body) -> Reply:
        if isinstance(body["prompt"], list):
            return 400, {}, failed("json: cannot unmarshal array into Go struct field .prompt of type string")
        return 200, {}, {"choices": [{"text": " yes", "finish_reason": "stop"}]} | count

    with model_server(ollama) as server, pytest.raises(UserError, match=r"as text only.*give --engine chat"):
        opened(asks(), server.url, **OWN)


def test_a_prompt_whose_text_would_be_read_as_a_control_token_is_not_sent_as_text(monkeypatch: pytest.MonkeyPatch):
    """The engine's own tokens of such a text are plain ones."""

    def plain(tokenizer: Any, prompt: str) -> list[int]:
        return tokenizer(prompt, split_special_tokens=True)["input_ids"]

    monkeypatch.setattr("rag_train.llm.openai.encode", plain)
    with model_server(completions_of("TGI")) as server:
        got = opened(asks_all("x", "<|endoftext|> x"), server.url, **OWN)
    assert isinstance(got[0], Completion) and isinstance(got[1], Refused) and got[1].reason == "impossible text"
    assert not server.since("endoftext")


def test_log_probabilities_of_llama_cpp_are_read():
    tokens = [
        {"id": 5, "token": "x", "logprob": -0.5, "top_logprobs": [{"id": 6, "token": "", "logprob": -1.0}]},
        {"id": 7, "token": "y", "logprob": -0.1, "top_logprobs": [{"id": 8, "token": "z", "logprob": None}]},
    ]
    choice = {"text": "xy", "finish_reason": "stop", "logprobs": {"content": tokens}}
    with model_server(lambda body: (200, {}, {"choices": [choice], "usage": USAGE})) as server:
        got = opened(asks(logprobs=2), server.url, **OWN)
    assert got.token_ids == (5, 7)
    read = [[(token.token_id, token.logprob) for token in step] for step in got.logprobs]
    assert read == [[(5, -0.5), (6, -1.0)], [(7, -0.1)]]


@pytest.mark.parametrize("models", [(200, {}, [{"id": "mini"}]), (404, {}, "no such page"), (405, {}, "")])
def test_lists_of_models_are_read_or_done_without(models: Reply):
    """Together's list stands alone, and some servers have none."""
    with model_server(completions_of("vLLM")) as server:
        server.models = models
        assert opened(asks(), server.url, **OWN).text == " one two three.\n"


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

    with model_server(script) as server:
        [got] = opened(asks_all("word " * 500), server.url, **OWN)
    assert isinstance(got, Completion if whole else PromptTooLong)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (said([{"type": "thinking", "thinking": []}, {"type": "text", "text": "Hucanoth"}]), "Hucanoth"),
        (said("Hucanoth", "COMPLETE"), "Hucanoth"),
        (said("Hucanoth", "eos_token"), "Hucanoth"),
        (said("Hucanoth", "eos"), "Hucanoth"),
        (said("Hucanoth", "end_turn"), "Hucanoth"),
        (json.dumps(said("Sipodu_")).replace("_", "\udcf0"), "Sipodu\ufffd"),
        (said("<think>\nhm\n</think>\n\nHucanoth"), "Hucanoth"),
    ],
    ids=["Mistral", "Cohere", "TGI", "Together", "Anthropic", "half a character", "llama.cpp"],
)
def test_answers_of_all_shapes_are_read(body: Any, text: str):
    with model_server(on("What?", (200, {}, body))) as served:
        got = opened(asks(), served.url)
    assert (got.text, got.truncated) == (text, False)
    json.dumps(got.text).encode()


def test_an_answer_without_a_reason_to_end_is_cut_if_it_is_as_long_as_allowed():
    with model_server(on("What?", (200, {}, said("Hucanoth", None)))) as server:
        assert opened(asks(max_tokens=5), server.url).truncated
    with model_server(on("What?", (200, {}, said("Hucanoth", "suspended")))) as server:
        [got] = opened(asks_all("What?"), server.url)
    assert isinstance(got, EngineError) and "finish_reason 'suspended' says not whether" in str(got)


REFUSALS = [json.loads(line) for line in (ROOT / "tests/cases/refusals.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: f"{case['reason']}: {case['server']}")
def test_a_refused_prompt_has_a_reason_and_the_others_are_answered(case: dict[str, Any]):
    with model_server(on("bad", (case["status"], {}, case["body"]))) as server:
        bad, good, *_ = opened(asks_all("bad", "good", "What?"), server.url)
    assert isinstance(bad, Refused) and bad.reason == case["reason"]
    assert isinstance(bad, PromptTooLong) == (bad.reason == "too long")
    assert good.text == "Paris" and len(server.since("bad")) == 1


@pytest.mark.parametrize(
    "message", ["the value is not allowed", "Limit 5000, Used 4900, Requested 200", "rate limit", "max_tokens: 10"]
)
def test_other_words_are_not_about_the_length(message: str):
    assert Problem(429, message, message.lower()).refusal is None
    assert Problem(400, message, "the value is not allowed").refusal is None


def test_an_error_of_all_requests_is_no_refusal_of_a_prompt():
    """The server rejects a setting: a short question with it is rejected too."""
    with model_server() as server:

        async def work(engine: LLM) -> Any:
            server.script = lambda body: (400, {}, failed("computer says no")) if "logprobs" in body else None
            return await asks_all("a")(engine), await asyncio.gather(
                *(engine.complete(f"{i}{TURN}", Sampling(logprobs=1)) for i in range(3)), return_exceptions=True
            )

        [answered], rejected = opened(work, server.url)
    assert answered.text == "Paris"
    assert all(isinstance(each, UserError) and "computer says no" in str(each) for each in rejected)


def test_a_rejected_schema_is_asked_for_in_words_by_that_call_alone():
    bad, good = (
        json.dumps({"type": "object", "properties": {name: {"type": "string"}}}) for name in ("bad", "good")
    )

    def script(body: Body) -> Reply:
        if "bad" in json.dumps(body.get("response_format", {})):
            return 400, {}, failed("Invalid schema", param="response_format")
        if "Is this" in json.dumps(body):
            return 200, {}, said('{"test": "yes"}')
        return 200, {}, said('{"bad": "x"}' if "bad" in json.dumps(body) else '{"good": "x"}')

    async def work(engine: LLM) -> list[str]:
        return [(await engine.complete(f"q{TURN}", Sampling(json_schema=each))).text for each in (bad, good)]

    with model_server(script) as server:
        assert opened(work, server.url) == ['{"bad": "x"}', '{"good": "x"}']
    assert "response_format" in server.asked[-1]


@pytest.mark.parametrize(
    ("complaint", "field", "told"),
    [
        (failed("Unsupported parameter", param="temperature", code="unsupported_parameter"), "temperature", ""),
        (failed("Unrecognized request argument supplied: seed"), "seed", ""),
        ({"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs"}]}, "seed", ""),
        ([failed('Invalid JSON payload received. Unknown name "seed": Cannot find field.')], "seed", ""),
        (failed("Argument not supported on this model: logprobs"), "logprobs", "log-probabilities no"),
    ],
    ids=["OpenAI", "Azure", "FastAPI", "Gemini", "xAI"],
)
def test_a_field_is_given_up_in_the_probe_and_this_is_said(complaint: Any, field: str, told: str, capfd):
    with model_server(lambda body: (400, {}, complaint) if field in body else None) as server:
        assert opened(asks(seed=1, logprobs=1), server.url).text == "Paris"
    assert field not in server.asked[-1] and (told or f"no {field}") in printed(capfd)


def test_a_replica_without_the_model_is_named_and_left_out(capfd):
    gone: Reply = 404, {}, failed("model m not found")
    with model_server(lambda body: gone) as first, model_server() as second:
        got = opened(asks_all(*"abcd"), first.url, second.url)
        assert [each.text for each in got] == ["Paris"] * 4
    line = printed(capfd)
    assert line.count(f"{first.url}/v1: status 404, model m not found; its calls go to the other servers") == 1
    with model_server(lambda body: gone) as first, model_server(first.script) as second:
        assert "request rejected, status 404, model m not found" in refusal_of(first.url, second.url)


@pytest.mark.parametrize("code", [402, "402", "insufficient_credits"])
def test_a_permanent_error_with_status_200_ends_with_the_servers_reason(code: Any):
    with model_server(lambda body: (200, {}, failed("no credits left", code=code))) as server:
        assert "no credits left" in refusal_of(server.url)


def test_an_error_within_a_choice_is_tried_again_later():
    choice = {"message": {"role": "assistant", "content": ""}, "error": {"message": "upstream", "code": 502}}
    replies = [(200, {}, {"choices": [choice | {"finish_reason": "error"}]})]
    with model_server(lambda body: replies.pop() if replies and "What?" in json.dumps(body) else None) as server:
        assert opened(asks(), server.url).text == "Paris"


HIDDEN = said("", "length", usage=USAGE | {"completion_tokens_details": {"reasoning_tokens": 5}})
UNCLOSED = said("<think>\nOkay, the user asks something. So the answer could be", "length")


@pytest.mark.parametrize("body", [HIDDEN, UNCLOSED], ids=["hidden", "unclosed"])
@pytest.mark.parametrize("when", ["", "What?"])
def test_a_model_that_thinks_gets_tokens_for_it(body: Body, when: str, capfd):
    """Whether its thoughts show in the probe, or only in a later call."""

    def script(body_: Body) -> Reply | None:
        return (200, {}, body) if body_["max_tokens"] < 1100 and when in json.dumps(body_) else None

    with model_server(script) as server:
        got = opened(asks(), server.url)
        assert (got.text, got.truncated) == ("Paris", False)
    assert when or "the model thinks, with 8,192 tokens for it" in printed(capfd)


@pytest.mark.parametrize("body", [HIDDEN, UNCLOSED, said("", "length")], ids=["hidden", "unclosed", "no trace"])
def test_a_thought_is_never_an_answer(body: Body):
    with model_server(on("What?", (200, {}, body))) as server:
        [got] = opened(asks_all("What?"), server.url, thinking=True)
    assert isinstance(got, Refused) and got.reason == "unclosed thought" and "engine.thinking_tokens" in str(got)


def test_thoughts_outside_the_written_tokens_are_not_taken_for_a_full_context():
    gemini = said("Hucan", "length", usage={"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 75})
    with model_server(on("What?", (200, {}, gemini))) as server:
        got = opened(asks(), server.url)
    assert (got.text, got.truncated, got.usage.completion_tokens) == ("Hucan", True, 66)


def test_the_text_of_a_wrapped_answer_is_cut_in_itself():
    wrapped = json.dumps({"answer": "complex question"}, indent=8)

    def script(body: Body) -> Reply:
        return 200, {}, said('{"test": "yes"}' if "Is this" in json.dumps(body) else wrapped)

    with model_server(script) as server:
        choices = (" simple question", " complex question")
        assert opened(asks(choice=choices, stop=("\n",)), server.url).text == " complex question"


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/completions/", "/v1/chat/completions"),
        ("/v1/models", "/v1/chat/completions"),
        ("/d/m/chat/completions?api-version=1", "/d/m/chat/completions?api-version=1"),
        ("/models?api-version=1", "/models/chat/completions?api-version=1"),
    ],
)
def test_addresses_are_taken_as_people_have_them(address: str, path: str):
    with model_server() as server:
        opened(asks(), server.url + address)
    assert set(server.paths) == {path}
