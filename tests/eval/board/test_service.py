"""The service of the board, and its page in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest
from starlette.testclient import TestClient
from support.browser import Browser
from support.matrices import EVIL, add_cell, contents, numbered
from support.servers import running
from support.synthesis import example, write

from rag_train.eval.board import service
from rag_train.eval.board.service import app
from rag_train.eval.board.watch import Board
from rag_train.jobs.files import write_text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a training, a synthesis, an evaluation and a page; a secret is next to it."""
    root = tmp_path / "runs"
    write_text(root / "stage1/run.json", json.dumps({"recipe": {"stage": "sft", "model": EVIL, "epochs": 1}}))
    rows = [
        {"step": i, "loss": 1 / i, "eval_loss": 2 / i, "learning_rate": 1e-5, "epoch": i / 10} for i in (1, 2, 3)
    ]
    write_text(root / "stage1/metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(root / "sft.jsonl", [example("a", EVIL)])
    meta = {"items": 1, "records": 1, "counts": {}, "rejected": {EVIL: 1}}
    write_text(root / "sft.jsonl.meta.json", json.dumps(meta | {"settings": {"stage": "sft", "model": "m"}}))
    line = {"item": 0, "records": [{"id": EVIL, "prompt": EVIL}], "counts": {}, "rejected": []}
    write_text(root / f"{EVIL.replace('/', '')}.partial", json.dumps(line) + "\n")
    add_cell(root / "eval", "model", numbered(1, 2), ["yes", "no"])
    write_text(root / "demo.html", "<title>demo</title>")
    write_text(tmp_path / "secret.html", "secret")
    write_text(tmp_path / "secret.jsonl", "secret")
    (root / "link.html").symlink_to(tmp_path / "secret.html")
    return root


def client(root: Path, host: str = "127.0.0.1", looks: int = 1) -> TestClient:
    """A client of a board whose streams end after some looks."""
    over = Mock(side_effect=[False] * looks + [True])
    return TestClient(app(Board(root, every=0.0), over=over), base_url=f"http://{host}")


def test_streams_all_there_is_and_then_only_what_is_new(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "EVERY", 0.0)
    first, second, end = client(root, looks=2).get("/events").text.split("\n\n")
    assert (second, end) == (": nothing new", "")
    news = json.loads(first.removeprefix("data: "))
    assert {run["card"]["kind"] for run in news["runs"]} == {"training", "synthesis", "evaluation"}
    assert news["now"] > 0 and news["pages"] == ["demo.html"]


def test_answers_only_its_own_pages_and_writes_nothing(root: Path):
    before = contents(root.parent)
    for path in ("/", "/chat", "/report/eval", "/records/sft.jsonl", "/page/demo.html"):
        response = client(root).get(path)
        assert response.status_code == 200 and "default-src 'none'" in response.headers["content-security-policy"]
        assert client(root, "evil.example").get(path).status_code == 403
        assert client(root).get(path, headers={"Origin": "http://evil.example"}).status_code == 403
        for method in ("POST", "PUT", "DELETE"):
            assert client(root).request(method, path, json={}).status_code == 405
    assert {client(root).head(path).status_code for path in ("/", "/chat")} == {200}
    assert client(root, "evil.example").get("/events").status_code == 403
    assert contents(root.parent) == before


@pytest.mark.parametrize("kind", ["page", "report", "records"])
@pytest.mark.parametrize(
    "name",
    ["%2e%2e/secret.html", "%2e%2e/secret.jsonl", "link.html", "%2Fetc%2Fpasswd", "gone.html", "%00", "eval"],
)
def test_refuses_what_is_not_inside_or_not_a_page(root: Path, kind: str, name: str):
    if (kind, name) == ("report", "eval"):
        return
    response = client(root).get(f"/{kind}/{name}")
    assert response.status_code == 404 and response.text.count("\n") == 0
    assert response.text != "secret" and response.headers["content-type"].startswith("text/plain")


@pytest.fixture
def page(root: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """The board's page in the browser, with all runs open."""
    monkeypatch.setattr(service, "EVERY", 0.05)
    over = Event()
    with running(app(Board(root, every=0.0), over=over.is_set)) as url:
        browser.open("about:blank")
        browser.events.clear()
        browser.open(f"{url}/")
        browser.wait("typeof runs !== 'undefined' && runs.size === 4")
        browser.run("document.querySelectorAll('.run').forEach(run => { run.open = true; })")
        browser.wait("document.querySelectorAll('.plots svg').length === 2")
        yield browser
        over.set()  # the server waits for streams at its end


@pytest.mark.slow
def test_page_follows_a_training(root: Path, page: Browser):
    points = "document.querySelector('#training polyline.first').getAttribute('points').split(' ').length"
    assert page.run(points) == 3
    with (root / "stage1/metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 0.1, "epoch": 0.4}\n')
    page.wait(f"{points} === 4")
    assert "step 4, loss 0.1000" in page.run("document.querySelector('#training summary').textContent")
    write_text(root / "late/metrics.jsonl", '{"step": 1, "loss": 1}\n')
    page.wait("runs.size === 5")
    assert page.run("document.querySelector('#training h2').textContent") == "Trainings (2)"
    assert page.complaints() == []


def test_page_shows_texts_as_text(page: Browser):
    assert page.run("document.title").endswith("rag-train board")
    assert page.run("document.querySelectorAll('img, body script').length") == 1
    assert page.run("document.body.innerText.split('<img src=x').length - 1") >= 5
    assert page.complaints() == []


def test_page_works_from_the_keyboard_and_copies_commands(page: Browser):
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.run("document.body.focus()")
    page.press("j")
    assert page.run("document.activeElement.parentNode.parentNode.parentNode.id") == "training"
    page.run("document.querySelector('#training .plots svg').focus()")
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    readout = "document.querySelector('#training .readout').textContent"
    assert page.run(readout) == "Step 2: training 0.5000, held out 1.000"
    page.press("/")
    page.call("Input.insertText", text="sft.jsonl")
    page.wait("document.querySelectorAll('.run:not([hidden])').length === 1")
    page.run("document.querySelector('#synthesis .run:not([hidden]) .command button').focus()")
    page.press("Enter")
    page.wait("document.activeElement.textContent !== 'Copy'")
    command = page.run("document.activeElement.previousSibling.textContent")
    assert command.startswith("rag-train train recipes/deeprag_sft.yaml")
    assert page.run("document.activeElement.textContent") == "Copied"
    assert page.run("navigator.clipboard.readText()") == command


@pytest.mark.slow
def test_page_links_to_pages_that_work(page: Browser):
    url, links = page.run("[location.origin, [...document.querySelectorAll('.actions a')].map(link => link.href)]")
    assert links == [f"{url}/records/sft.jsonl", f"{url}/report/eval"]
    for link, shows in zip(links, ("#record h2", "#example h3"), strict=True):
        page.open(link)
        page.wait(f"location.href.startsWith('{link}') && !!document.querySelector('{shows}')")
        assert page.complaints() == []
