"""`rag-train data view`, in a real browser."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.browser import Browser
from support.commands import call
from support.matrices import EVIL
from support.synthesis import HELD_OUT, example, write

from rag_train.jobs.items import Rejected
from rag_train.schema import LLMCall, Passage, Plan, PlanNode, PreferencePair, Step, Trajectory


@pytest.fixture
def show(browser: Browser) -> Callable[..., None]:
    """Run `rag-train data view` on a file, with options, and open the page."""

    def run(path: Path, *options: str) -> None:
        assert call("data", "view", str(path), "--output", str(path.with_suffix(".html")), *options) == 0
        browser.open("about:blank")
        browser.events.clear()
        browser.open(path.with_suffix(".html").as_uri())
        browser.wait("document.readyState === 'complete' && document.querySelector('#record h2') !== null")

    return run


def text(browser: Browser, selector: str) -> str:
    """The visible text of the first element that matches ``selector``."""
    return browser.run(f"document.querySelector({selector!r}).innerText")


def test_page_shows_trajectories_and_obeys_keys_and_filters(browser: Browser, show, tmp_path: Path):
    passage = Passage(id="p", title=EVIL, text=f"text {EVIL}")
    nodes = [
        PlanNode(id="Q1.1", question="a?"),
        PlanNode(id="Q1.2", question="b?"),
        PlanNode(id="Q2.1", question=EVIL, parents=["Q1.1", "Q1.2"]),
    ]
    step = Step(subquery=EVIL, decision="retrieve", passages=[passage], answer=EVIL, round=1, node="Q1.1")
    llm_call = LLMCall(module=EVIL, prompt_tokens=1234, completion_tokens=5)
    answered = Trajectory(
        question_id=EVIL,
        question=f"One {EVIL}",
        strategy="planrag",
        steps=[step],
        answer=EVIL,
        reasoning=EVIL,
        calls=[llm_call, llm_call],
        plan=Plan(nodes=nodes),
        outline={EVIL: [EVIL, "b"]},
        notes={EVIL: EVIL},
    )
    failed = Trajectory(question_id="2", question="Two?", strategy="planrag", error=f"broke {EVIL}")
    cot = {"strategy": "cot", "answer": "yes"}
    others = [Trajectory(question_id=str(i), question=f"Question {i}?", **cot) for i in range(3, 30)]
    show(write(tmp_path / "runs.jsonl", [answered, failed, *others]))
    assert text(browser, "#count") == "29 records"
    shown = text(browser, "#record")
    for part in (f"One {EVIL}", "Q1.1 a?", "P(search)", "Outline", "Notes", "2,468"):
        assert (part in shown) == (part != "P(search)")
    assert browser.run("document.querySelectorAll('#record svg path').length") == 2
    assert browser.run("document.querySelectorAll('#record svg rect').length") == 3
    boxes = "[...document.querySelectorAll('#record .node p')].map(box => box.textContent)"
    assert browser.run(boxes) == ["Q1.1 a?", "Q1.2 b?", f"Q2.1 {EVIL}"]
    assert browser.run("document.title") == "runs.jsonl"
    assert browser.run("document.querySelectorAll('script').length") == 2

    browser.run("document.querySelector('#list').focus()")
    browser.press("ArrowDown")
    assert "broke </script>" in text(browser, "#record .problem")
    browser.press("End")
    assert text(browser, "#record h2") == "Question 29?"
    browser.wait("location.hash === '#29'")
    browser.press("/")
    assert browser.run("document.activeElement.id") == "search"
    browser.call("Input.insertText", text='onerror="')
    assert text(browser, "#count") == "2 of 29 records" and text(browser, "#record h2").startswith("One")
    browser.press("Escape")
    assert browser.run("document.activeElement.id") == "list"
    choose = "((id, value) => { $(id).value = value; $(id).dispatchEvent(new Event('input', {bubbles: true})) })"
    browser.run(f"{choose}('outcome', 'failed')")
    assert text(browser, "#count") == "1 of 29 records" and text(browser, "#record h2") == "Two?"
    browser.run(f"{choose}('search', 'nothing like it')")
    assert text(browser, "#list") == "No record passes these filters." and text(browser, "#record") == ""

    assert browser.complaints() == []
    assert all(url.startswith(("file:", "data:", "about:")) for url in browser.requested())


def test_page_shows_every_type_of_record(browser: Browser, show, tmp_path: Path):
    plan = json.dumps([{"id": "Q1.1", "question": "a?", "parents": []}, {"id": "Q2.1", "question": "b?", "parents": ["Q1.1"]}])  # fmt: skip  # noqa: E501
    parametric = Step(subquery="Who?", decision="parametric", answer="Ann", retrieve_probability=0.25)
    records = [
        example("1/plan", "Plan it", plan),
        example("2", "Split it", '{"thought": "so", "retrieve": true}'),
        example("1/search", "Search it", steps=[parametric], answer="Ann"),
    ]
    path = write(tmp_path / "sft.jsonl", records)
    write(Path(f"{path}.rejected.jsonl"), [Rejected(id="r", reason="no right trajectory", text=EVIL)])
    show(path)
    assert text(browser, "#count") == "4 records"
    assert browser.run("document.querySelectorAll('#record svg rect').length") == 2
    assert browser.run("document.querySelector('#record mark').textContent") == f" {plan}\n"
    assert browser.run("document.querySelector('#record details summary').textContent") == "Instruction"
    rows = browser.run("[...document.querySelectorAll('#list > *')].map(row => row.className)")
    assert rows == ["", "same", "", ""]
    wanted = [["P(search) 0.25", "knew", "Ann"], ["thought", "true"], [EVIL, "no right trajectory"]]
    for parts in wanted:
        browser.run("document.querySelector('#list').focus()")
        browser.press("ArrowDown")
        assert all(part in text(browser, "#record") for part in parts)
    browser.wait("location.hash === '#rejected-1'")

    pair = PreferencePair(
        id="p", prompt="Question: Why?\nFollow up: What?\n", history_start=15, node=0,
        chosen="Let's search the question in Wikipedia.", rejected="Intermediate answer:",
    )  # fmt: skip
    show(write(tmp_path / "pairs.jsonl", [pair]))
    assert text(browser, "#record .chosen p").startswith("Let's search")
    assert "Follow up: What?" in text(browser, "#record") and text(browser, "#record h2") == "Why?"
    show(write(tmp_path / "questions.jsonl", [HELD_OUT] * 9), "--most", "3")
    assert text(browser, "#count") == "3 of 9 records, spread evenly" and "Louis Malle" in text(browser, "#record")
