"""The client of OpenAI-compatible servers, tested against vLLM's own server and a server with scripted failures."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.models import CLOSED, Body, ModelServer, Reply, asks, failed, fine, model_server, opened, scripted

from rag_train.errors import PromptTooLong, Refused, UserError
from rag_train.jobs.retries import ItemState, item_state
from rag_train.llm import replicas
from rag_train.llm.base import Completion, EngineError, Sampling
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.llm.engines import EngineConfig, open_engine
from rag_train.llm.openai import OpenAIEngine
from rag_train.llm.replicas import Replicas
from rag_train.llm.transformers import TransformersEngine
from rag_train.worlds.mini.world import CHAINS, World

SCHEMA = json.dumps({"enum": ["yes", "no"]})  # an object would leave the white space to the model


@pytest.fixture(scope="module")
def model(mini_model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The shipped controller with a generation_config.json, which a server follows unless told otherwise."""
    directory = tmp_path_factory.mktemp("models") / "mini"
    shutil.copytree(mini_model, directory)
    path = directory / "generation_config.json"
    defaults = {"repetition_penalty": 3.0, "top_k": 1, "temperature": 2.0}
    path.write_text(json.dumps(json.loads(path.read_text()) | defaults))
    return str(directory)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that refuses connections and that only a server with SO_REUSEADDR, given this port, can bind."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def vllm_server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    options = "--host 127.0.0.1 --dtype float32 --enforce-eager --block-size 32 --max-model-len 512"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *options.split()]
    settings = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with reserved_port() as port, log.open("w") as output:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=output, stderr=output, env=settings)
        try:
            while not answers(f"http://127.0.0.1:{port}"):
                assert server.poll() is None, log.read_text()[-3000:]
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(60)


@pytest.mark.release
@pytest.mark.engine
def test_vllm_server_agrees_with_transformers(mini_world: World, model: str, vllm_server: str):
    questions = [CHAINS[(r,)][0].format(x=s) for s, r in sorted(mini_world.known)[::40]][:8]
    prompts = [f"Question: {question}\n" for question in questions]

    async def go() -> None:
        reference = TransformersEngine.start(model)
        config = EngineConfig(kind="openai", urls=[f"{vllm_server}/v1/"])
        async with open_engine(model, config) as engine:
            assert engine.name == reference.name == "mini"
            for sampling in (
                Sampling(max_tokens=24),
                Sampling(max_tokens=24, stop=("\n", "answer:")),
                Sampling(max_tokens=12, logprobs=3),
                Sampling(choice=("yes", "no")),
                Sampling(regex="[a-c]{3}"),
                Sampling(json_schema=SCHEMA),
            ):
                got, want = await asyncio.gather(
                    asyncio.gather(*(engine.complete(prompt, sampling) for prompt in prompts)),
                    asyncio.gather(*(reference.complete(prompt, sampling) for prompt in prompts)),
                )
                for a, b in zip(got, want, strict=True):
                    assert (a.text, a.stop, a.truncated) == (b.text, b.stop, b.truncated)
                    assert (a.token_ids, a.usage) == (b.token_ids, b.usage)
                    assert len(a.logprobs) == len(b.logprobs)
                    for x, y in zip(a.logprobs, b.logprobs, strict=True):
                        assert [(t.token_id, t.text) for t in x] == [(t.token_id, t.text) for t in y]
                        assert [t.logprob for t in x] == pytest.approx([t.logprob for t in y], abs=1e-3)
            hot = [Sampling(max_tokens=24, temperature=1.5, seed=seed) for seed in (1, 1, 2)]
            first, same, other = await asyncio.gather(*(engine.complete(prompts[0], s) for s in hot))
            assert first.text == same.text != other.text
            for prompt in ("x " * 1000, "x " * 254):  # too long without, and with the tokens to generate
                with pytest.raises(ValueError, match="context"):
                    await engine.complete(prompt, Sampling(max_tokens=64))
            with pytest.raises(UserError, match=r"adapter runs/stage2: .* does not serve it"):
                await engine.complete("x", Sampling(adapter="runs/stage2"))
        with pytest.raises(UserError, match=rf"serves {model}, not other; give a served name as model"):
            OpenAIEngine(Replicas([vllm_server]), "other")

    asyncio.run(go())


def ask(
    model: str,
    *urls: str,
    calls: int = 1,
    sampling: Sampling | None = None,
    patience: float = 600.0,
    **options: Any,
) -> list[Any]:
    """Make ``calls`` calls at the same time, each for an item, and return their completions or exceptions."""

    async def call(engine: OpenAIEngine, prompt: str) -> Completion:
        item_state.set(ItemState(retry_for=patience))
        return await engine.complete(prompt, sampling or Sampling())

    async def go() -> list[Any]:
        engine = OpenAIEngine(Replicas(urls, **options), "mini", tokenizer=model)
        try:
            return await asyncio.gather(
                *(call(engine, f"prompt {i}") for i in range(calls)), return_exceptions=True
            )
        finally:
            await engine.aclose()

    return asyncio.run(go())


DAY = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)


def prompts(server: ModelServer, model: str) -> list[str]:
    """Return the prompts that the server has received."""
    tokenizer = load_tokenizer(model)
    return [str(tokenizer.decode(body["prompt"])) for body in server.asked]


def test_sends_all_parameters_and_reads_answer_without_vllm_extensions(model: str, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    logprobs = {
        "tokens": [" yes", "\n"],
        "token_logprobs": [-2.0, -0.1],
        "top_logprobs": [{" no": -0.5, " maybe": -1.0}, {"\n": -0.1, ".": -3.0}],
    }
    sampling = Sampling(
        max_tokens=7, top_p=0.5, temperature=0.7, seed=3, stop=("\n",), logprobs=2, choice=("a", "b")
    )
    with model_server(scripted(fine(logprobs=logprobs))) as server:
        [got] = ask(model, server.url, sampling=sampling, key="MY_KEY")
    assert server.authorization == "Bearer secret"
    assert server.asked == [
        {
            "model": "mini",
            "prompt": load_tokenizer(model)("prompt 0")["input_ids"],
            "max_tokens": 7,
            "temperature": 0.7,
            "top_p": 0.5,
            "seed": 3,
            "stop": ["\n"],
            "logprobs": 2,
            "structured_outputs": {"choice": ["a", "b"]},
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "include_stop_str_in_output": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
    ]
    assert (got.text, got.stop, got.truncated, got.usage.completion_tokens) == (" yes", "\n", False, 2)
    assert [[t.logprob for t in step] for step in got.logprobs] == [[-0.5, -1.0, -2.0], [-0.1, -3.0]]
    # The generated token is among the alternatives.
    assert all(i in [t.token_id for t in step] for i, step in zip(got.token_ids, got.logprobs, strict=True))


@pytest.mark.parametrize("status", [0, 408, 409, 425, 429, 500, 502, 503, 504, 520, 529])
def test_what_may_succeed_later_is_tried_again(model: str, status: int):
    failures = 1 if status == 500 else 2  # 500 may be the answer to an invalid call
    with model_server(scripted(*[(status, {"Retry-After": "0"}, "<html>")] * failures)) as server:
        [got] = ask(model, server.url)
    assert got.text == " yes" and len(server.asked) == failures + 1


def logprobs_of(token_ids: list[int] | None = None, **changes: Any) -> Reply:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{}, {}]} | changes
    return fine(logprobs=logprobs, token_ids=token_ids, text="yes")


INVALID = "the answer is not a completion"
SCHEMA_ERROR = 400, {}, failed("bad\nschema")


@pytest.mark.parametrize(
    ("replies", "kind", "complaint"),
    [
        ([(200, {}, '{"choices": [{"te')], EngineError, f"{INVALID} .Invalid JSON"),
        ([(200, {}, {"choices": [], "usage": {}})], EngineError, INVALID),
        ([(200, {}, "[" * 10**6)], EngineError, INVALID),
        ([(400, {}, "[" * 10**6)] * 2, UserError, "request rejected, status 400"),
        ([(200, {"Content-Encoding": "gzip"}, "{}")], EngineError, "the response cannot be read"),
        ([fine(token_ids=[-1])], EngineError, f"{INVALID} .*greater than or equal to 0"),
        ([fine(token_ids=[10**12])], EngineError, f"{INVALID} .*less than"),
        ([logprobs_of(tokens=["", "b"])], EngineError, "token '' is not in the tokenizer's vocabulary"),
        ([logprobs_of(token_logprobs=[-0.1])], EngineError, "log-probabilities differ in length"),
        ([logprobs_of(token_ids=[1])], EngineError, "1 tokens with 2 log-probabilities"),
        ([logprobs_of(token_logprobs=[0, float("nan")])], EngineError, r"content.1.logprob: .*number"),
        ([fine(finish_reason="abort")], EngineError, r"generation was aborted .abort"),
        ([(500, {}, "")] * 2, EngineError, "status 500"),
        ([(307, {"Location": "/login"}, "")], EngineError, "status 307"),
        ([(503, {"Retry-After": "3600"}, "later")], EngineError, "503, later; the server asks to wait 3,600 s"),
        ([(429, {"Retry-After": DAY}, failed("daily"))], EngineError, r"429, daily; the server asks to wait 8\d,"),
        ([(429, {}, failed("quota", code="insufficient_quota"))], UserError, "429, quota"),
        ([(401, {}, {"error": "no"})], UserError, "request rejected, status 401.*as engine.key"),
        ([SCHEMA_ERROR] * 2, UserError, "rejected, status 400, bad schema"),
        ([SCHEMA_ERROR, fine()], Refused, "status 400, bad schema"),
        ([(400, {}, failed("maximum context length is 8"))], ValueError, "maximum context"),
        ([fine(finish_reason="length")], PromptTooLong, "prompt of 1 tokens and 64 to write exceed the context"),
    ],
)
def test_does_not_retry_other_failures(model: str, replies: list[Reply], kind: type[Exception], complaint: str):
    with model_server(scripted(*replies)) as server:
        server.cards[0]["max_model_len"] = 3
        [got] = ask(model, server.url)
    assert len(server.asked) == len(replies)
    with pytest.raises(kind, match=complaint):
        raise got


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be set forward."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped

    def skip(self, seconds: float) -> None:
        self.skipped += seconds


def test_call_without_answer_fails_at_its_time_limit(model: str):
    end = threading.Event()
    loop = JumpingLoop()

    def hang(body: Body) -> Reply:
        loop.call_soon_threadsafe(loop.skip, 600)  # the request has arrived: let its time run out
        end.wait(60)
        return CLOSED

    with model_server(hang) as server, asyncio.Runner(loop_factory=lambda: loop) as runner:
        engine = OpenAIEngine(Replicas([server.url], timeout=600), "mini", tokenizer=model)
        with pytest.raises(EngineError, match="no answer within 600 s"):
            runner.run(engine.complete("prompt", Sampling()))
        end.set()
        runner.run(engine.aclose())
    assert len(server.asked) == 1


def test_the_wait_that_a_server_asks_for_is_waited(model: str, monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        loop.skip(seconds)
        slept.append(seconds)

    monkeypatch.setattr(replicas.asyncio, "sleep", sleep)
    monkeypatch.setattr(replicas, "current", lambda: ItemState(retry_for=600.0))
    with model_server(scripted((429, {"Retry-After": "300.5"}, "later"))) as server:
        loop = JumpingLoop()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            engine = OpenAIEngine(Replicas([server.url]), "mini", tokenizer=model)
            assert runner.run(engine.complete("prompt", Sampling())).text == " yes"
            runner.run(engine.aclose())
    assert 200 < max(slept) <= 375


def test_gives_up_if_server_does_not_come_back(model: str):
    with model_server(scripted()) as server:
        server.script = lambda body: (503, {}, "closed")
        got = ask(model, server.url, calls=20, patience=0.2)
    for error in got:
        assert isinstance(error, EngineError) and "status 503, closed; gave up after 0.2 s" in str(error)


def test_calls_survive_a_server_restart(model: str):
    """The server stops without answering the calls in progress, and starts again later at the same address."""
    end, arrived = threading.Event(), threading.Semaphore(0)

    def hang(body: Body) -> Reply:
        arrived.release()
        end.wait(60)
        return CLOSED

    async def go() -> list[Any]:
        engine = OpenAIEngine(Replicas([first.url]), "mini", tokenizer=model)
        in_progress = [asyncio.create_task(engine.complete(str(i), Sampling())) for i in range(4)]
        for _ in in_progress:
            await asyncio.to_thread(arrived.acquire)
        first.shutdown()
        first.socket.close()
        meanwhile = [asyncio.create_task(engine.complete(str(i), Sampling())) for i in range(4)]
        replica = engine._replicas.all[0]
        while not replica.failures:  # until the new calls are refused
            await asyncio.sleep(0.01)
        with model_server(scripted(), port) as second:
            got = await asyncio.gather(*in_progress, *meanwhile)
        assert sorted(prompts(second, model)) == sorted("01230123")
        await engine.aclose()
        return got

    with reserved_port() as port, ModelServer(hang, port) as first:
        threading.Thread(target=first.serve_forever, args=(0.01,), daemon=True).start()
        assert [completion.text for completion in asyncio.run(go())] == [" yes"] * 8
        end.set()


def test_other_replica_answers_calls_of_a_failed_replica(model: str):
    """One of two replicas closes its connections: all calls are answered, its calls by the other replica."""
    both = threading.Barrier(8)

    def dies(body: Body) -> Reply:
        if len(victim.asked) <= 4:
            both.wait(60)
        return CLOSED

    def lives(body: Body) -> Reply:
        if len(survivor.asked) <= 4:
            both.wait(60)  # each replica has four calls before either answers
        return fine()

    with model_server(dies) as victim, model_server(lives) as survivor:
        got = ask(model, victim.url, survivor.url, calls=8)
    assert [completion.text for completion in got] == [" yes"] * 8
    assert set(prompts(victim, model)[:4]) == {f"prompt {i}" for i in (0, 2, 4, 6)}
    assert set(prompts(survivor, model)) == {f"prompt {i}" for i in range(8)}


def test_calls_go_to_the_replica_with_the_fewest_calls(model: str):
    """A replica that does not answer gets as many calls as the other has in flight, and no further calls."""
    end = threading.Event()

    def slow(body: Body) -> Reply:
        end.wait(60)
        return fine()

    async def go() -> None:
        engine = OpenAIEngine(Replicas([busy.url, idle.url], max_in_flight=3), "mini", tokenizer=model)
        held = asyncio.create_task(engine.complete("held", Sampling()))
        await asyncio.sleep(0)
        for i in range(5):  # in sequence
            await engine.complete(str(i), Sampling())
        assert prompts(idle, model) == ["0", "1", "2", "3", "4"]
        idle.script = slow
        many = [asyncio.create_task(engine.complete("x", Sampling())) for _ in range(20)]
        while len(busy.asked) + len(idle.asked) < 1 + 5 + 5:  # until 6 calls are in flight, the most
            await asyncio.sleep(0.01)
        assert [len(replica.in_flight) for replica in engine._replicas.all] == [3, 3]
        end.set()
        await asyncio.gather(held, *many)
        assert len(busy.asked) + len(idle.asked) == 26
        await engine.aclose()

    with model_server(slow) as busy, model_server(scripted()) as idle:
        asyncio.run(go())


def test_a_questions_calls_stay_on_a_replica_unless_it_falls_behind(model: str):
    end, arrived = threading.Event(), threading.Semaphore(0)

    def slow(body: Body) -> Reply:
        if body["max_tokens"] == 1:
            arrived.release()
            end.wait(60)
        return fine()

    async def go() -> None:
        engine = OpenAIEngine(Replicas([first.url, second.url]), "mini", tokenizer=model)
        items = [ItemState(), ItemState()]

        def call(item: ItemState, prompt: str, max_tokens: int = 64) -> asyncio.Task[Completion]:
            context = copy_context()
            context.run(item_state.set, item)
            return asyncio.create_task(engine.complete(prompt, Sampling(max_tokens=max_tokens)), context=context)

        others = [call(items[0], "start")]
        await asyncio.sleep(0)
        await call(items[1], "other")  # the second is idle, and so becomes its replica
        await others.pop()
        for i in range(3):
            await asyncio.gather(*(call(item, f"{n} {i}") for n, item in enumerate(items)))
        assert prompts(first, model) == ["start", "0 0", "0 1", "0 2"]
        assert prompts(second, model) == ["other", "1 0", "1 1", "1 2"]
        held = [call(items[0], f"held {i}", 1) for i in range(8)]
        held += [call(ItemState(), "held", 1) for _ in range(replicas.SLACK + 2)]
        for _ in held:
            await asyncio.to_thread(arrived.acquire)
        before = len(first.asked), len(second.asked)
        busy, idle = sorted(engine._replicas.all, key=lambda replica: -len(replica.in_flight))
        assert len(busy.in_flight) - len(idle.in_flight) <= replicas.SLACK + 1
        end.set()
        await asyncio.gather(*held)
        assert sum(before) == len(first.asked) + len(second.asked)
        await engine.aclose()

    with model_server(slow) as first, model_server(slow) as second:
        asyncio.run(go())


def test_adapters_are_found_by_the_servers_name_or_directory(model: str, tmp_path):
    """Directories of the same base name are different adapters."""
    one, other = tmp_path / "a/stage1", tmp_path / "b/stage1"

    async def go(adapter: str) -> None:
        engine = OpenAIEngine(Replicas([server.url]), "mini", tokenizer=model)
        try:
            await engine.complete("x", Sampling(adapter=adapter))
        finally:
            await engine.aclose()

    with model_server(scripted()) as server:
        server.cards += [{"id": "first", "root": str(one)}, {"id": "stage1", "root": "/elsewhere"}]
        asyncio.run(go(str(one)))
        asyncio.run(go("stage1"))
        assert [body["model"] for body in server.asked] == ["first", "stage1"]
        with pytest.raises(UserError, match=rf"{other}: {server.url}/v1 does not serve it; .*--lora-modules"):
            asyncio.run(go(str(other)))


@pytest.mark.parametrize(
    ("replies", "text", "can"),
    [
        ([logprobs_of(), fine(), fine(text="free")], "free", "decoding yes, log-probabilities yes"),
        ([fine(text=" no"), fine(), fine(text=" No, it is.")], "no", "decoding no, log-probabilities no"),
        (
            [(400, {}, "unknown field"), fine(text=" no"), fine(), fine(text=" **No**.")],
            "no",
            "decoding no, log-probabilities no",
        ),
    ],
)
def test_a_server_is_asked_once_what_it_can_do(model: str, capfd, replies: list[Reply], text: str, can: str):
    with model_server(scripted(*replies)) as server:
        got = opened(asks("x", choice=("yes", "no")), server.url, kind="openai", tokenizer=model)
    assert got.text == text and can in " ".join(capfd.readouterr().err.split())
    assert len(server.asked) == len(replies) and ("structured_outputs" in server.asked[-1]) == (text == "free")


def test_passwords_in_addresses_are_not_shown(model: str):
    with reserved_port() as port, pytest.raises(UserError, match=r"http://\*\*\*@127\.0\.0\.1:") as caught:
        OpenAIEngine(Replicas([f"http://me:pa@ss@127.0.0.1:{port}"]), "mini", tokenizer=model)
    assert "ss@" not in str(caught.value)
    assert "secret" not in str(EngineError("https://key:secret@host/v1: status 500"))


@pytest.mark.slow
def test_start_rejects_unusable_servers(model: str):
    def start(*urls: str) -> None:
        OpenAIEngine(Replicas(urls), "mini", tokenizer=model)

    with pytest.raises(UserError, match=r"engine.urls: no server given; start a server with `vllm serve MODEL`"):
        start()
    with reserved_port() as port, model_server(scripted()) as server:
        nowhere = f"http://127.0.0.1:{port}"
        for url in (nowhere, "127.0.0.1:8000", "http://[", ""):
            with pytest.raises(UserError, match=r"does not answer .*; start the server"):
                start(url)
        with pytest.raises(UserError, match=f"{nowhere}/v1 does not answer"):
            start(server.url, nowhere)
        with pytest.raises(UserError, match=r"cannot read its tokenizer .*; give .* as engine.tokenizer"):
            OpenAIEngine(Replicas([server.url]), "./mini")
        server.cards = "a page"
        with pytest.raises(UserError, match="is not an OpenAI-compatible server"):
            start(server.url)
