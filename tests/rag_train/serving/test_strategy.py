"""The strategy service with a real engine and the mini model over real sockets, and its page in a browser."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import httpx
import pytest
from support.browser import Browser
from support.commands import call
from support.fakes import opened
from support.models import Chat, model_server
from support.servers import running

from rag_train.errors import ServiceError, UserError
from rag_train.llm.base import EngineError
from rag_train.llm.engines import EngineConfig
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import LLMCall, Passage, Plan, PlanNode, Step, Trajectory
from rag_train.serving import strategy as service
from rag_train.serving.http import Access
from rag_train.serving.protocol import MAX_BODY
from rag_train.serving.strategy import app
from rag_train.strategies.base import STRATEGIES, Kit, Named, Run, Strategy
from rag_train.strategies.kit import KitConfig, open_kit
from rag_train.worlds.mini.world import World, write_world

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@dataclass(frozen=True)
class Staged(Strategy):
    """A strategy that takes one step, and a second one once ``gate`` is open; records whether it was cancelled."""

    gate: ClassVar = threading.Event()
    waiting: ClassVar = threading.Event()
    cancelled: ClassVar = threading.Event()

    async def solve(self, run: Run) -> Trajectory:
        question = run.question
        nodes = [PlanNode(id="Q1.1", question="a?"), PlanNode(id="Q2.1", question="b?", parents=["Q1.1"])]
        run.show("plan", Plan(nodes=nodes))
        run.known("first", question.question, round=1, node="Q1.1")
        run.show("outline", {"entity": ["known"]})
        self.waiting.set()
        await opened(self.gate, self.cancelled)
        run.retrieved("second", [], question.question, round=2, node="Q2.1")
        return run.done(question.question)


@dataclass(frozen=True)
class Crowd(Strategy):
    """A strategy that synchronizes eight questions, each with its steps in separate tasks."""

    barrier: ClassVar = asyncio.Barrier(8)

    async def solve(self, run: Run) -> Trajectory:
        question = run.question

        async def step(i: int) -> None:
            await asyncio.sleep(0)
            run.known(f"{question.question} {i}", "", round=i)

        for i in range(5):
            await self.barrier.wait()
            await asyncio.gather(step(i), step(i))
        return run.done(question.question)


@dataclass(frozen=True)
class Failing(Strategy):
    """A strategy that takes one step and fails with the error given by ``way``."""

    way: str = "engine"

    async def solve(self, run: Run) -> Trajectory:
        run.known("before", "it failed")
        errors = {"engine": EngineError("no answer\nwithin 1 s"), "user": UserError("the index is down; start it")}
        raise errors.get(self.way, RuntimeError("secret details"))


@dataclass(frozen=True)
class Hostile(Strategy):
    """A strategy with hostile text in everything that the page shows; ``pause`` is in seconds between steps."""

    pause: float = 0.0

    async def solve(self, run: Run) -> Trajectory:
        passages = [Passage(id=EVIL, title=EVIL, text=EVIL)]
        for i, node in enumerate(("Q1.1", "Q1.2", "Q2.1", EVIL)):
            await asyncio.sleep(self.pause)
            run.retrieved(EVIL, passages, EVIL, queries=[EVIL], node=node, round=i // 2)
        run.notes[EVIL] = EVIL
        run.calls.append(LLMCall(module=EVIL, prompt_tokens=1, completion_tokens=2))
        nodes = [
            PlanNode(id="Q1.1", question=EVIL),
            PlanNode(id="Q1.2", question=EVIL),
            PlanNode(id="Q2.1", question=EVIL, parents=["Q1.1", "Q1.2"]),
            PlanNode(id=EVIL, question=EVIL, parents=["Q2.1", "gone"]),
        ]
        run.plan, run.outline = Plan(nodes=nodes), {EVIL: [EVIL, EVIL]}
        return run.done(EVIL, EVIL)


def opening(world: World, model: Path) -> AbstractAsyncContextManager[Kit]:
    engine = EngineConfig(kind="transformers", dtype="float32")
    config = KitConfig(model=str(model), indexes=[], engine=engine, given=False)
    return open_kit(config, {"": BM25Index.build(world.corpus())})


@pytest.fixture(scope="module")
def url(mini_world: World, mini_model: Path) -> Iterator[str]:
    extra = {"staged": Staged, "crowd": Crowd, "failing": Failing, "hostile": Hostile}
    with pytest.MonkeyPatch.context() as patch:
        for name, strategy in extra.items():
            patch.setitem(STRATEGIES, name, Named(strategy, {}))
        with running(app(opening(mini_world, mini_model), "deeprag")) as address:
            yield address


@pytest.fixture(scope="module")
def questions(mini_world: World) -> list[str]:
    return [q.question for q in mini_world.questions("dev") if (q.hops or 0) > 1][:8]


def body(question: str, strategy: str = "", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "strategy": strategy} | more


def post(url: str, asked: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=120)


def stream(url: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a streamed response and check its end."""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=asked | {"stream": True}, timeout=120) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
        for line in lines:
            if line == "[DONE]":
                assert next(lines, None) is None
                return
            yield json.loads(line)
    raise AssertionError("the stream ended without [DONE]")


@pytest.mark.parametrize(("cut", "finish"), [(True, "length"), (False, "stop")])
def test_says_of_an_answer_that_it_was_cut(cut: bool, finish: str):
    call = LLMCall(module="reader", prompt_tokens=1, completion_tokens=9, cut=cut)
    trajectory = Trajectory(question_id="q", question="Who?", strategy="direct", calls=[call])
    [choice] = json.loads(service._completion(trajectory, {}))["choices"]
    assert choice["finish_reason"] == finish and choice["message"]["content"] == ""


@pytest.mark.parametrize("strategy", ["", "deeprag-retrieve", "cot-rag,k=2"])
@pytest.mark.slow
def test_streamed_and_complete_responses_agree(url: str, questions: list[str], strategy: str):
    with ThreadPoolExecutor(8) as pool:
        whole = [pool.submit(post, url, body(question, strategy)) for question in questions]
        parts = list(pool.map(lambda question: list(stream(url, body(question, strategy))), questions))
    for question, response, events in zip(questions, whole, parts, strict=True):
        reply = response.result().json()
        trajectory = Trajectory.model_validate(reply["trajectory"])
        assert (trajectory.question, trajectory.strategy) == (question, strategy or "deeprag")
        assert (reply["object"], reply["model"]) == ("chat.completion", strategy or "deeprag")
        message = {"role": "assistant", "content": trajectory.answer or ""}
        assert reply["choices"] == [{"index": 0, "message": message, "finish_reason": "stop"}]
        read, written = reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]
        assert read == sum(call.prompt_tokens for call in trajectory.calls) > 0
        assert written == reply["usage"]["total_tokens"] - read > 0

        first, *steps, answer, last = events
        assert {(event["object"], event["id"]) for event in events} == {("chat.completion.chunk", first["id"])}
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        streamed = Trajectory.model_validate(last["trajectory"])
        assert [Step.model_validate(event["step"]) for event in steps] == streamed.steps
        assert comparable(streamed) == comparable(trajectory)
        assert all(event["choices"][0]["delta"] == {"content": ""} for event in steps)
        assert answer["choices"][0] == {"index": 0, "delta": {"content": message["content"]}, "finish_reason": None}
        assert last["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"}
        assert last["usage"] == reply["usage"]


def comparable(trajectory: Trajectory) -> Trajectory:
    """Remove the request id, and the probabilities, which depend on the batch because of rounding."""
    steps = [step.model_copy(update={"retrieve_probability": None}) for step in trajectory.steps]
    return trajectory.model_copy(update={"question_id": "", "steps": steps})


def test_streams_steps_when_they_are_completed(url: str):
    Staged.gate.clear()
    events = stream(url, body("q", "staged"))
    assert "step" not in next(events)
    assert [node["id"] for node in next(events)["plan"]["nodes"]] == ["Q1.1", "Q2.1"]
    assert next(events)["step"]["subquery"] == "first" and next(events)["outline"] == {"entity": ["known"]}
    Staged.gate.set()
    assert [event["step"]["subquery"] for event in events if "step" in event] == ["second"]


def test_separates_the_steps_of_concurrent_requests(url: str):
    with ThreadPoolExecutor(8) as pool:
        for i, events in enumerate(pool.map(lambda i: list(stream(url, body(f"q{i}", "crowd"))), range(8))):
            steps = [event["step"]["subquery"] for event in events if "step" in event]
            assert steps == [f"q{i} {step}" for step in range(5) for _ in range(2)]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_disconnect_cancels_the_strategy(url: str, streamed: bool):
    for event in (Staged.gate, Staged.waiting, Staged.cancelled):
        event.clear()
    content = json.dumps(body("q", "staged", stream=streamed)).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(head.encode() + content)
        assert Staged.waiting.wait(60)
    assert Staged.cancelled.wait(60)
    assert httpx.get(f"{url}/health").json()["status"] == "ok"


def test_reads_the_last_user_message_and_the_strategy(url: str):
    Staged.gate.set()
    messages = [
        {"role": "user", "content": "before"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None},
    ]
    asked = {"model": "staged", "messages": messages, "temperature": 0.5}
    assert post(url, asked).json()["choices"][0]["message"]["content"] == "a"
    assert post(url, asked | {"strategy": "rag,k=1"}).json()["model"] == "rag,k=1"


def test_lists_models_and_health(url: str):
    listed = httpx.get(f"{url}/v1/models").json()
    assert listed["data"][0]["id"] == "deeprag" and {"rag", "cot"} <= {model["id"] for model in listed["data"]}
    health = httpx.get(f"{url}/health").json()
    assert (health["status"], health["strategy"], health["retriever"], health["k"]) == ("ok", "deeprag", "bm25", 3)


ERRORS: list[tuple[dict[str, Any], int, str]] = [
    (body("q", "guess"), 400, "unknown strategy 'guess'; the strategies are"),
    (body("q", "rag,depth=2"), 400, "no setting 'depth'"),
    (body("q", model="gpt-4"), 400, "unknown strategy 'gpt-4'"),
    (body("q", "x" * 201), 400, "strategy: "),
    (body(" "), 400, "no question"),
    ({"messages": []}, 400, "no question"),
    ({"messages": [{"role": "system", "content": "q"}]}, 400, "no question"),
    ({"messages": "q"}, 400, "messages: "),
    ({}, 400, "messages: "),
    (body("q" * MAX_BODY), 413, "larger than"),
    (body("q" * 10_001), 400, "longer than 10000 characters"),
    (body("q", "rag,k=1000000000"), 400, "k may be at most 20 here"),
    (body("q", "rag,k=-1000000000"), 400, "k may be at most 20 here"),
    (body("q", "deeprag,max_steps=25"), 400, "max_steps may be at most 24 here"),
    (body("q", "deeprag,threshold=.nan"), 400, "threshold may be at most 20 here"),
    (body("q", "rag,k=2024-13-45"), 400, "is not"),
    (body("q", "rag,k=" + "[" * 190), 400, "is not"),
    (body("q", "rag,k=0b_"), 400, "is not"),
]
FAILURES: list[tuple[dict[str, Any], int, str]] = [
    (body("why " * 2500, "direct"), 400, "exceed the context"),
    (body("q", "failing"), 503, "no answer within 1 s"),
    (body("q", "failing,way=user"), 502, "the index is down"),
    (body("q", "failing,way=bug"), 500, "see the log"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "status", "said"), ERRORS + FAILURES)
def test_errors_have_a_status_and_a_message(url: str, asked: dict[str, Any], status: int, said: str):
    response = post(url, asked)
    assert response.status_code == status
    check_error(response.json(), status, said)


@pytest.mark.parametrize(("asked", "status", "said"), FAILURES)
def test_errors_in_a_stream(url: str, asked: dict[str, Any], status: int, said: str):
    *events, error = stream(url, asked)
    assert len([event for event in events if "step" in event]) == asked["strategy"].startswith("failing")
    check_error(error, status, said)


def check_error(reply: dict[str, Any], status: int, said: str) -> None:
    error = reply["error"]
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert error["code"] == status
    assert said in error["message"] and "\n" not in error["message"] and "secret" not in str(reply)


class Outage:
    """A retriever whose service can be down."""

    name, down = "outage", False

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if self.down:
            raise ServiceError("retrieval service http://h:1: connection\nrefused; start it")
        return [[Passage(id="1", text="red fox")] for _ in queries]


@pytest.mark.slow
def test_an_outage_of_engine_or_retriever_is_503_and_passes_by_itself(monkeypatch: pytest.MonkeyPatch):
    """A question waited ten minutes for an engine that was down, and then got 504; one that gave up got 502."""
    retriever = Outage()

    def asked(url: str, question: str) -> tuple[int, str]:
        response = post(url, body(question))
        reply = response.json()
        if response.status_code == 200:
            return 200, reply["choices"][0]["message"]["content"]
        assert response.headers["Retry-After"] == "10"
        check_error(reply, response.status_code, "")
        return response.status_code, reply["error"]["message"]

    monkeypatch.setattr(service, "RETRY_FOR", 0.0)
    chat = Chat()
    with model_server(chat) as engine:
        config = KitConfig(model="m", indexes=[], engine=EngineConfig(kind="chat", urls=[engine.url]))
        with running(app(open_kit(config, {"": retriever}), "rag")) as url:
            assert asked(url, "a") == (200, "Paris")
            retriever.down = True
            status, said = asked(url, "b")
            assert status == 503 and said == "retrieval service http://h:1: connection refused; start it"
            retriever.down = False
            chat.failures = [(503, {}, "restarting")]
            status, said = asked(url, "b")
            assert status == 503 and "status 503, restarting; gave up after 0 s" in said
            monkeypatch.setattr(service, "RETRY_FOR", 60.0)
            assert asked(url, "b") == (200, "Paris")


@pytest.mark.parametrize("sent", [b"", b"{", b"\xff\x00", json.dumps(body("\ud800")).encode()])
def test_rejects_bodies_that_are_not_json(url: str, sent: bytes):
    headers = {"Content-Type": "application/json"}
    response = httpx.post(f"{url}/v1/chat/completions", content=sent, headers=headers)
    assert response.status_code == 400
    check_error(response.json(), 400, "as JSON in UTF-8")


def test_foreign_pages_cannot_ask(url: str):
    """A link to a question only fills the form, see `fill` and `ask` below."""
    asked = httpx.post(f"{url}/v1/chat/completions", json=body("q"), headers={"Origin": "http://page.example"})
    check_error(asked.json(), asked.status_code, "another site's page")
    assert httpx.head(url).status_code == 200


def test_refuses_questions_beyond_its_limits(url: str, monkeypatch: pytest.MonkeyPatch):
    Staged.gate.clear()
    monkeypatch.setattr(service, "MAX_SECONDS", 0.05)
    late = post(url, body("q", "staged"))
    assert late.status_code == 504
    check_error(late.json(), 504, "took more than 0.05 s")


@pytest.fixture(scope="module")
def index(mini_world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("world")
    write_world(mini_world, directory / "world")
    assert call("index", directory / "world/corpus.jsonl", directory / "index") == 0
    return directory / "index"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["deeprog"], "unknown strategy 'deeprog'; did you mean deeprag?"),
        (["rag,depth=2"], "no setting 'depth'"),
        (["rag", "--engine", "onnx"], "--engine onnx: kind=onnx is not vllm|transformers|openai|chat"),
        (["rag", "--index", "gone"], "gone"),
        (["rag", "--port", "99999"], "choose another"),
        (["rag", "--engine", "transformers"], "not found; give a checkpoint directory"),
    ],
)
def test_command_reports_mistakes_in_one_line(capfd, index: Path, arguments: list[str], message: str):
    command = ["serve", "strategy", "--model", "no/such/model", "--index", index, "--port", "0"]
    assert call(*command, *arguments) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and message in lines[0]


@pytest.mark.slow
def test_command_serves_until_interrupted(mini_model: Path, index: Path, questions: list[str]):
    command = [sys.executable, "-m", "rag_train.cli", "serve", "strategy", "deeprag", "--engine", "transformers"]
    command += ["--model", str(mini_model), "--index", str(index), "--no-instructions", "--port", "0"]
    service = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert service.stderr
        url = next(found[0] for line in service.stderr if (found := re.search(r"http://127.0.0.1:\d+", line)))
        health = httpx.get(f"{url}/health").json()  # the address is printed once the service answers
        assert health["status"] == "ok"
        assert post(url, body(questions[0])).json()["trajectory"]["steps"]
    finally:
        service.send_signal(signal.SIGINT)
        errors = service.communicate(timeout=60)[1]
    assert service.returncode == 0 and "Traceback" not in errors


def fill(browser: Browser, url: str, **fields: str) -> None:
    """Open the page with a question or a strategy in its address."""
    browser.open("about:blank")
    browser.open(f"{url}/#{urlencode(fields)}")
    browser.wait("typeof strategies !== 'undefined' && strategies.length > 0")


def ask(browser: Browser, url: str, question: str, strategy: str) -> str:
    """Open the page with a question in its address, ask it, and return the HTML after the answer."""
    fill(browser, url, q=question, strategy=strategy)
    assert browser.run("[run, $('question').value, $('strategy').value]") == [None, question, strategy]
    browser.run("$('ask').click()")
    browser.wait("run?.ended")
    return browser.run("document.documentElement.outerHTML")


def test_page_shows_an_answer(url: str, questions: list[str], browser: Browser):
    trajectory = Trajectory.model_validate(post(url, body(questions[0], "deeprag-retrieve")).json()["trajectory"])
    page = ask(browser, url, questions[0], "deeprag-retrieve")
    shown = unescape(page.partition("<main")[2].partition("</main>")[0])
    assert trajectory.answer and f'aria-live="polite"><p>{trajectory.answer}<' in shown
    assert shown.count('class="badge">searched<') == len(trajectory.steps) > 1
    for step in trajectory.steps:
        assert f">{step.subquery}</p>" in shown and f">{step.answer}<" in shown
        assert all(passage.text in re.sub("</?mark>", "", shown) for passage in step.passages)
    assert f">{sum(call.prompt_tokens for call in trajectory.calls):,}</td>" in shown
    tokens = sum(call.prompt_tokens + call.completion_tokens for call in trajectory.calls)
    assert f"{trajectory.retrievals} retrievals, {len(trajectory.calls)} calls, {tokens:,} tokens, " in shown
    found = [passage for step in trajectory.steps for passage in step.passages]
    sources = {passage.title for passage in found if re.search(rf"\b{trajectory.answer}\b", passage.text)}
    assert sources == set(browser.run("[...document.querySelectorAll('.answer .cite')].map(b => b.title)"))
    assert (f"<mark>{trajectory.answer}</mark>" in shown) == bool(sources)


def test_page_shows_hostile_text_as_text(url: str, browser: Browser):
    page = ask(browser, url, EVIL, "hostile")
    marks = "[document.title, document.querySelectorAll('img').length, document.scripts.length]"
    assert browser.run(marks) == ["rag-train", 0, 1]
    assert page.count("&lt;img src=x onerror=") >= 4 * 5 + 12  # steps; plan, outline, notes, calls and others
    assert page.count("<rect ") == 4 and page.count("<path ") == 3 and page.count('<a class="node retrieve"') == 4


def test_page_shows_steps_as_they_arrive_and_stops_from_the_keyboard(url: str, browser: Browser):
    Staged.gate.clear()
    fill(browser, url, strategy="staged")
    browser.call("Input.insertText", text="What is it?")
    browser.press("Enter")
    browser.wait("document.querySelectorAll('.step').length === 1")
    assert not browser.run("run.ended") and browser.run("view.status.textContent").startswith("Working: 1 step, ")
    assert "No answer" not in browser.run("document.body.innerText")
    assert browser.run("view.steps.lastElementChild.textContent") == "The next step is running."
    assert browser.run("document.querySelector('#way .plan a p').textContent") == "Q1.1 a?"
    browser.run("document.querySelector('#way .plan a').dispatchEvent(new MouseEvent('click', {cancelable: true}))")
    assert browser.run("document.activeElement === view.cards[0]")
    browser.run("$('question').focus()")
    assert browser.run("document.querySelectorAll('#way .plan rect').length") == 2
    assert browser.run("view.aside.querySelector('dl').textContent") == "entityknown"
    Staged.gate.set()
    browser.wait("document.querySelectorAll('.step').length === 2 && run.ended")
    assert browser.run("view.steps.children.length") == 2
    assert browser.run("view.answer.textContent") == "What is it?"
    assert browser.run("location.hash") == "#q=What+is+it%3F&strategy=staged"

    Staged.gate.clear()
    Staged.cancelled.clear()
    browser.press("Enter")
    browser.wait("document.querySelectorAll('.step').length === 1")
    browser.press("Enter")
    browser.wait("run.ended")
    assert Staged.cancelled.wait(60)
    assert browser.run("view.problem.textContent") == "Stopped."
    answers = "[...document.querySelector('.past tbody').rows].map(row => row.cells[2].textContent)"
    assert browser.run(answers) == ["Stopped.", "What is it?"]
    browser.run("document.querySelectorAll('.past button')[1].click()")
    assert browser.run("[view.answer.textContent, view.problem.hidden]") == ["What is it?", True]
    assert browser.run("document.querySelectorAll('.step').length") == 2


def test_page_asks_for_the_key(mini_world: World, mini_model: Path, browser: Browser):
    with running(app(opening(mini_world, mini_model), "direct", access=Access("secret"))) as address:
        browser.open(f"{address}/#q=What+is+it%3F&strategy=direct")
        browser.wait("typeof run !== 'undefined' && !$('keyed').hidden && !$('problem').hidden")
        assert browser.run("$('problem').textContent").startswith("no valid API key")
        browser.run("$('key').focus()")
        browser.call("Input.insertText", text="secret")
        browser.press("Enter")
        browser.wait("run?.ended")
        assert browser.run("run.trajectory !== null") and browser.run("$('problem').hidden")


@pytest.mark.parametrize("width", [320, 400, 1200])
def test_page_fits_the_screen(url: str, browser: Browser, width: int):
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 800
    )
    ask(browser, url, EVIL, "hostile")
    assert browser.run("document.documentElement.scrollWidth") <= width


def test_page_shows_errors(url: str, browser: Browser):
    for strategy, said in (("failing", "no answer within 1 s"), ("guess", "unknown strategy 'guess'")):
        ask(browser, url, "q", strategy)
        assert said in browser.run("view.problem.textContent") and not browser.run("view.problem.hidden")
    fill(browser, url)
    browser.run("document.querySelector('#examples button').click()")
    assert browser.run("[run, $('question').value]") == [None, browser.run("EXAMPLES[0][0]")]


def test_page_is_self_contained(url: str):
    response = httpx.get(url)
    assert "script-src 'sha256-" in response.headers["content-security-policy"]
    text = re.sub(r"http://www\.w3\.org/(2000/svg|1999/xhtml)", "", response.text)
    assert "innerHTML" not in text and "://" not in text
