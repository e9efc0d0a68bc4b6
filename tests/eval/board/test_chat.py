"""The board's chat: what it takes from services, and its page in a browser, with scripted strategies."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
from starlette.testclient import TestClient
from support.browser import Browser
from support.fakes import Says, opened
from support.matrices import EVIL
from support.servers import Handler, running, serving

from rag_train.errors import UserError
from rag_train.eval.board import chat
from rag_train.eval.board.chat import Service
from rag_train.eval.board.service import app
from rag_train.eval.board.watch import Board
from rag_train.schema import LLMCall, Passage, Trajectory
from rag_train.serving import strategy as strategies
from rag_train.serving.http import Access
from rag_train.strategies.base import STRATEGIES, Kit, Named, Run, Strategy

FILM = Passage(id="1", title="Jaws", text="Jaws is a film of 1975 by Steven Spielberg.")
TOWN = Passage(id="2", title="Ohio", text="Cincinnati, where Spielberg was born, is in Ohio.")


@dataclass(frozen=True)
class Citing(Strategy):
    """Takes two searches, the second one once ``gate`` is open; records whether it was cancelled."""

    gate: ClassVar = threading.Event()
    cancelled: ClassVar = threading.Event()

    async def solve(self, run: Run) -> Trajectory:
        run.retrieved("Who directed Jaws?", [FILM], "The director of Jaws is Steven Spielberg.")
        await opened(self.gate, self.cancelled)
        run.retrieved("Where was Steven Spielberg born?", [TOWN, FILM], "He was born in Cincinnati.")
        run.calls.append(LLMCall(module="reader", prompt_tokens=1000, completion_tokens=10))
        return run.done("Yes" if run.question.question.startswith("Was") else "Cincinnati")


@dataclass(frozen=True)
class Hostile(Strategy):
    """Has hostile text in its step and answer."""

    async def solve(self, run: Run) -> Trajectory:
        run.retrieved(EVIL, [Passage(id=EVIL, title=EVIL, text=EVIL)], EVIL, queries=[EVIL], node=EVIL)
        return run.done(EVIL, EVIL)


@dataclass(frozen=True)
class Broken(Strategy):
    """Takes a step and fails."""

    async def solve(self, run: Run) -> Trajectory:
        run.known("before", "it failed")
        raise UserError("the index is down; start it")


@asynccontextmanager
async def opening() -> AsyncIterator[Kit]:
    """A kit for strategies that ask neither model nor retriever."""
    retriever: Any = SimpleNamespace(retriever=SimpleNamespace(name="bm25"))
    yield Kit(Says("x"), retriever)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A strategy service with the strategies above."""
    with pytest.MonkeyPatch.context() as patch:
        for name, strategy in {"citing": Citing, "hostile": Hostile, "broken": Broken}.items():
            patch.setitem(STRATEGIES, name, Named(strategy, {}))
        with running(strategies.app(opening(), "citing")) as address:
            yield address


def client(root: Path, *urls: str) -> TestClient:
    services = [Service(f"service {i}", url) for i, url in enumerate(urls)]
    return TestClient(app(Board(root), services), base_url="http://127.0.0.1")


def ask(board: TestClient, question: str = "q", strategy: str = "citing", number: int = 0) -> list[dict[str, Any]]:
    body = {"messages": [{"role": "user", "content": question}], "strategy": strategy, "stream": True}
    response = board.post(f"/chat/{number}/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_passes_on_what_a_service_says(url: str, tmp_path: Path):
    Citing.gate.set()
    board = client(tmp_path, url)
    health = board.get("/chat/0/health").json()
    assert health == {"strategy": "citing", "model": "says", "retriever": "bm25", "k": 3}
    listed = board.get("/chat/0/v1/models").json()["data"]
    assert listed[0]["id"] == "citing" and listed[0]["description"].startswith("Takes two searches")
    events = ask(board)
    assert next(event["step"]["subquery"] for event in events if event["step"]) == "Who directed Jaws?"
    assert events[-1]["trajectory"]["answer"] == "Cincinnati"
    assert board.get("/chat/1/health").status_code == 404
    assert ask(board, strategy="broken")[-1]["error"]["message"] == "the index is down; start it"
    assert "unknown strategy 'guess'" in ask(board, strategy="guess")[-1]["error"]["message"]


def test_only_its_own_page_can_ask_and_only_what_a_service_takes(url: str, tmp_path: Path):
    board, path = client(tmp_path, url), "/chat/0/v1/chat/completions"
    assert board.post(path, json={}, headers={"Origin": "http://evil.example"}).status_code == 403
    assert board.post(path, content="{}").status_code == 415
    assert board.get("/chat/0/health", headers={"Host": "evil.example"}).status_code == 403
    assert "no question" in board.post(path, json={"messages": []}).json()["error"]["message"]
    long = {"messages": [{"role": "user", "content": "q" * 2**20}]}
    assert board.post(path, json=long).status_code == 413
    for other in ("/chat/0/", "/chat/0/v1/other", "/chat/x/health"):
        assert board.get(other).status_code in (404, 422)


class Odd(Handler):
    """A server that is no strategy service; ``replies`` has status, body and headers by path."""

    replies: ClassVar[dict[str, tuple[int, bytes, dict[str, str]]]] = {}
    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.body()
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send(*self.replies[self.path])


ODD: list[tuple[int, bytes, dict[str, str], str]] = [
    (200, b'data: {"step": {"subquery": 1}}\n\n', {}, "not the reply of a `rag-train serve strategy`"),
    (200, b'data: {"choices": []}\n\n' * 200, {}, "the reply is larger than"),
    (302, b"", {"Location": "/secret"}, "status 302; give the address of a `rag-train serve strategy`"),
    (404, b"<html>", {}, "status 404; give the address"),
    (500, b'{"error": {"message": "' + b"x\\n" * 900 + b'"}}', {}, "x x x"),
    (0, b"", {}, "start `rag-train serve strategy` there"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("status", "body", "headers", "said"), ODD)
def test_a_server_that_is_no_service_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, headers: dict[str, str], said: str
):
    monkeypatch.setattr(chat, "MAX_REPLY", 3000)
    Odd.asked.clear()
    paths = ("/health", "/v1/models", "/v1/chat/completions")
    monkeypatch.setattr(Odd, "replies", dict.fromkeys(paths, (status, body, headers)))
    with serving(Odd) as address:
        board = client(tmp_path, address)
        message = ask(board)[-1]["error"]["message"]
        assert said in message and "\n" not in message and len(message) < 700
        about = board.get("/chat/0/health")
        assert about.status_code == 502 and "\n" not in about.json()["error"]["message"]
    assert "/secret" not in Odd.asked


def test_waits_for_a_service_only_so_long(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Citing.gate.clear()
    monkeypatch.setattr(chat, "ANSWER", 0.2)
    assert "no answer within 0.2 s" in ask(client(tmp_path, url))[-1]["error"]["message"]


def test_the_key_is_sent_to_services_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with running(strategies.app(opening(), "direct", access=Access("secret"))) as address:
        refused = client(tmp_path, address).get("/chat/0/health").json()["error"]["message"]
        assert refused.endswith("start the board with the service's key in RAG_TRAIN_API_KEY")
        monkeypatch.setenv("RAG_TRAIN_API_KEY", "secret")
        assert client(tmp_path, address).get("/chat/0/health").json()["model"] == "says"


NO_ADDRESSES = ["127.0.0.1:8000", "file:///etc/passwd", "http://", "http://u:p@h:1", "http://h/?a=b", "http://[x"]


@pytest.mark.parametrize("url", [*NO_ADDRESSES, "http://h:99999"])
def test_an_address_that_is_not_one_is_refused(url: str):
    with pytest.raises(UserError, match=r"--chat a=.*write a=http://HOST:PORT") as caught:
        Service("a", url)
    assert "u:p" not in str(caught.value)


@pytest.fixture
def page(url: str, browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    """The page with two services, of which the first has strategies, and nothing listens at the second."""
    services = [Service("one", url), Service("gone", "http://127.0.0.1:9"), Service(EVIL, url)]
    with running(app(Board(tmp_path), services)) as address:
        browser.open("about:blank")
        browser.events.clear()
        browser.open(f"{address}/chat")
        browser.wait("typeof sides !== 'undefined' && sides[0].strategies.length && !sides[1].problem.hidden")
        yield browser
        browser.open("about:blank")


def choose(page: Browser, side: int, service: int, strategy: str) -> None:
    chosen = f"sides[{side}]"
    page.run(f"{chosen}.service.value = {service}; {chosen}.service.dispatchEvent(new Event('change'))")
    page.wait(f"{chosen}.strategies.length > 0")
    page.run(f"{chosen}.strategy.value = '{strategy}'")


@pytest.mark.slow
def test_page_asks_both_and_cites_passages_from_the_keyboard(page: Browser):
    assert "start `rag-train serve strategy` there" in page.run("sides[1].problem.textContent")
    choose(page, 1, 0, "broken")
    Citing.gate.clear()
    page.run("document.activeElement.blur()")
    page.press("/")
    page.call("Input.insertText", text="Where was the director of Jaws born?")
    page.press("Enter")
    page.wait("sides[1].run?.ended && sides[0].view.cards.length === 1")
    assert page.run("sides[1].view.problem.textContent") == "the index is down; start it"
    assert page.run("[sides[0].run.ended, $('ask').textContent]") == [False, "Stop"]
    assert page.run("sides[0].view.cards[0].querySelector('.cite').title") == "Jaws"
    Citing.gate.set()
    page.wait("sides[0].run.ended")
    assert page.run("sides[0].view.answer.firstChild.textContent") == "Cincinnati[2]"
    status = page.run("sides[0].view.status.textContent")
    assert status.startswith("2 steps, 2 retrievals, 1 call, 1,010 tokens, ")

    quote = "sides[0].view.answer.querySelector('blockquote')"
    assert page.run(f"{quote}.hidden")
    page.run("sides[0].view.answer.querySelector('.cite').focus()")
    page.press("Enter")
    assert page.run(f"[{quote}.hidden, {quote}.querySelector('mark').textContent]") == [False, "Cincinnati"]
    assert page.run(f"{quote}.innerText").split("\n")[-1] == TOWN.text
    page.run(f"{quote}.querySelector('button').focus()")
    page.press("Enter")
    assert page.run("document.activeElement === sides[0].view.cards[1]")
    page.run("sides[0].view.answer.querySelector('.cite').focus()")
    page.press("Enter")
    assert page.run(f"{quote}.hidden")

    page.run("$('question').value = 'Was he born in Ohio?'; $('ask').click()")
    page.wait("running().length === 0 && sides[0].run.answer === 'Yes'")
    assert page.run("sides[0].view.answer.firstChild.textContent") == "Yes[1][2]"  # what the steps rest on
    answers = "[...document.querySelectorAll('.past tbody tr')].map(row => row.cells[2].textContent)"
    failed = "the index is down; start it"
    assert page.run(answers) == ["Yes", failed, "Cincinnati", failed]
    page.run("document.querySelectorAll('.past button')[2].click()")
    assert page.run("sides[0].view.answer.firstChild.textContent") == "Cincinnati[2]"
    assert page.complaints("Runtime.exceptionThrown") == []


@pytest.mark.slow
def test_page_stops_and_shows_hostile_text_as_text(page: Browser):
    choose(page, 0, 2, "hostile")
    choose(page, 1, 0, "citing")
    Citing.gate.clear()
    Citing.cancelled.clear()
    page.run("$('question').value = 'q'; $('ask').click()")
    page.wait("sides[0].run?.ended && sides[1].view.cards?.length === 1")
    page.press("Escape")
    page.wait("running().length === 0")
    assert page.run("sides[1].view.problem.textContent") == "Stopped."
    assert Citing.cancelled.wait(60)
    page.run("document.querySelectorAll('.cite').forEach(cite => cite.click())")
    assert page.run("[document.querySelectorAll('img').length, document.scripts.length]") == [0, 1]
    assert page.run("document.title").startswith("Chat")
    assert page.run("sides[0].way.innerText.split('<img').length") > 5
    assert page.complaints("Runtime.exceptionThrown") == []


def test_page_without_services_says_what_to_run(browser: Browser, tmp_path: Path):
    with running(app(Board(tmp_path))) as address:
        html = httpx.get(f"{address}/chat")
        assert "script-src 'sha256-" in html.headers["content-security-policy"] and "innerHTML" not in html.text
        browser.open(f"{address}/chat")
        browser.wait("document.querySelectorAll('.command').length === 2")
        commands = browser.run("[...document.querySelectorAll('.command code')].map(code => code.textContent)")
        assert commands[0] == "rag-train serve strategy STRATEGY --model MODEL --index INDEX"
        assert commands[1] == f"rag-train board {tmp_path} --chat NAME=http://127.0.0.1:8000"
        browser.open("about:blank")


EVIDENCE: list[tuple[str, str, list[str]]] = [
    ("Cincinnati", "Where?", ["Cincinnati"]),
    ("He was born in Cincinnati, Ohio.", "Where was he born?", ["Cincinnati", "Ohio"]),
    ("The town of Cincinnati.", "Is Cincinnati a town?", []),
    ("Dayton, Ohio", "Where?", []),
    ("Cinci", "Where?", []),
    ("yes", "Is it?", []),
    ("No.", "Is it?", []),
    ("where spielberg was BORN", "What?", ["where spielberg was BORN"]),
    ("(Ohio", "What? (", ["Ohio"]),
]


@pytest.mark.slow
def test_a_passage_is_cited_for_the_answer_itself_or_for_all_its_new_names(page: Browser):
    for answer, question, found in EVIDENCE:
        cited = page.run(f"evidence({json.dumps(TOWN.text)}, {json.dumps(answer)}, {json.dumps(question)})")
        assert cited == found, answer
