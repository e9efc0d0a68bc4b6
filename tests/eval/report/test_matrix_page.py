"""The page of an evaluation matrix in a real browser."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.browser import Browser
from support.matrices import EVIL, SIZE, Made, add_cell, numbered

from rag_train.eval.metrics.intervals import mcnemar
from rag_train.eval.metrics.scores import score
from rag_train.eval.report.matrix import write_matrix_report


@pytest.fixture
def page(made: Made, browser: Browser) -> Browser:
    """The page, whose events start with its load."""
    browser.resize(1200, 900)
    browser.scheme("light")
    browser.open("about:blank")
    browser.events.clear()
    show(browser, made)
    return browser


def show(page: Browser, made: Made, fragment: str = "") -> None:
    page.open("about:blank")
    page.open(made.url + fragment)
    page.wait("!!document.querySelector('#example h3') && document.activeElement !== null")


def assert_quiet(page: Browser, made: Made) -> None:
    """Assert that the page has made no request and written nothing to the console."""
    assert page.complaints() == [] and page.requested() <= {made.url, "about:blank", "data:,"}


def update(page: Browser, **changes: str) -> None:
    page.run(f"update({json.dumps(changes)})")


def texts_of(page: Browser, selector: str) -> list[str]:
    return page.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(node => node.textContent)")


@pytest.mark.slow
def test_tables_and_plots(made: Made, page: Browser):
    def column(number: int) -> list[str]:
        rows = "[...document.querySelector('div.scroll > table').tBodies[0].rows]"
        return page.run(f"{rows}.map(row => row.cells[{number}].textContent)")

    def sort(number: int) -> None:
        page.run(f"document.querySelectorAll('.table thead button')[{number}].click()")

    assert column(0) == ["planner", "decider", EVIL]
    assert [text.partition(" [")[0] for text in column(1)[:2]] == [
        f"{100 * sum(made.right[name]) / SIZE:.1f}" for name in ("planner", "decider")
    ]
    titles = texts_of(page, ".figures h3")
    assert titles[:2] == ["Exact match and retrievals", "Exact match and tokens"] and len(titles) == 6
    assert "planner" in texts_of(page, ".figures svg text")
    sort(0)
    assert column(0) == [EVIL, "decider", "planner"]
    sort(1)
    assert column(0) == ["planner", "decider", EVIL]
    sort(1)  # a second click turns the order
    assert column(0) == [EVIL, "decider", "planner"]
    assert_quiet(page, made)


@pytest.mark.slow
def test_filters(made: Made, page: Browser):
    outcomes = made.outcomes()
    wins, losses = outcomes.count("10"), outcomes.count("01")
    p = mcnemar(*(score(made.questions, made.trajectories[name]) for name in ("decider", "planner")))
    sentence = page.run("document.querySelector('#paired').textContent")
    assert f"{100 * (wins - losses) / SIZE:.1f} points" in sentence
    assert float(sentence.rpartition("p = ")[2].rstrip(".")) == pytest.approx(p, rel=0.05)
    for code in ("10", "01", "11", "00"):
        page.run(f"document.querySelector('#outcomes input[value=\"{code}\"]').click()")
        page.wait(f"document.querySelector('#count').textContent.startsWith('{outcomes.count(code)} of')")
        expected = "".join("✓" if digit == "1" else "✗" for digit in code)
        assert set(texts_of(page, "#rows .marks")) == {expected}
    update(page, outcome="10", hops="4", search="THING-3")
    left = [
        q.question
        for q, outcome in zip(made.questions, outcomes, strict=True)
        if outcome == "10" and q.hops == 4 and "thing-3" in q.question
    ]
    page.wait(f"matches.length === {len(left)}")
    assert texts_of(page, "#rows .text") == left[: len(texts_of(page, "#rows .text"))] and left
    update(page, search="no such words")
    page.wait("matches.length === 0")
    page.run("document.querySelector('#rows button').click()")
    page.wait(f"matches.length === {SIZE}")
    assert 5 < page.run("document.querySelectorAll('[role=option]').length") < 50  # only the visible rows
    page.run("$('list').scrollTop = 1e9")
    page.wait(f"!!document.querySelector('[aria-posinset=\"{SIZE}\"]')")
    assert_quiet(page, made)


@pytest.mark.slow
def test_example(made: Made, page: Browser):
    show(page, made, "#examples&example=q13&search=thing-13")
    assert page.run("document.querySelector('#example h3').textContent") == made.questions[13].question
    assert page.run("document.querySelector('#count').textContent") == "11 of 400 examples"
    assert page.run("document.activeElement.id") == "examples"
    left, right = texts_of(page, "#example .card")
    assert all(step.subquery in left and step.answer in left for step in made.trajectories["planner"][13].steps)
    assert "✓ retrieved, fact unknown" in left and "✗ from memory, fact unknown" in right
    assert "2 retrievals · 2 rounds · 2 calls · 220 tokens" in left and "makes things" in right
    assert texts_of(page, ".plan .node p") == ["Q1.1 who?", "Q1.2 when?", "Q2.1 where?"]
    assert page.run("document.querySelectorAll('.plan .edge').length") == 2
    assert page.run("document.querySelectorAll('.plan .retrieve').length") == 2
    page.run("document.querySelector('.plan a').dispatchEvent(new MouseEvent('click', {cancelable: true}))")
    assert page.run("document.activeElement === document.querySelector('#example .steps li')")
    passages = texts_of(page, "#example .card:first-child blockquote p")
    assert passages == ["Thing 31.50", "It was made in City 3."] * 2
    show(page, made, "#examples&example=q3")
    assert texts_of(page, "#example mark") == ["City 3"] * 2  # the passage of both steps contains the answer
    assert texts_of(page, "#example .badge.right").count("gold") == 2
    assert_quiet(page, made)


@pytest.mark.slow
def test_address_restores_the_view(made: Made, page: Browser):
    ids = {"a": made.ids["decider"], "b": made.ids["planner"]}
    update(page, **ids, measure="accuracy", outcome="01", hops="3")
    page.wait(
        "cellOf('a') === pair.cells[0] && matches.length > 2 && matches.every(number => outcome(number) === '01')"
    )
    page.run("show(matches[2])")
    page.wait("location.hash.includes('example=') && location.hash.includes('outcome=01')")
    address, title = page.run("[location.hash, document.querySelector('#example h3').textContent]")
    show(page, made, address)
    assert page.run("document.querySelector('#example h3').textContent") == title
    assert page.run("[$('a').value, $('b').value, $('hops').value]") == [*ids.values(), "3"]
    assert page.run("$('measure').value") == "accuracy"
    show(page, made, "#nowhere&a=gone&b=gone&measure=__proto__&hops=9&toString=1")
    assert page.run("[state.a, state.b, state.measure]") == [made.ids["planner"], made.ids["decider"], "em"]
    assert_quiet(page, made)


@pytest.mark.slow
def test_keyboard(made: Made, page: Browser):
    focused = "document.activeElement.id"
    page.press("/")
    assert page.run(focused) == "search"
    page.call("Input.insertText", text="thing-39")
    page.wait("matches.length === 10")
    page.press("ArrowDown")
    assert page.run(focused) == "list"
    for key, at in (("ArrowDown", 1), ("End", 9), ("ArrowUp", 8), ("Home", 0), ("ArrowUp", 0), ("ArrowDown", 1)):
        page.press(key)
        page.wait(f"current === matches[{at}]")
    selected = page.run("$($('list').getAttribute('aria-activedescendant')).getAttribute('aria-selected')")
    assert selected == "true" and texts_of(page, "[aria-selected=true] .text") == [made.questions[390].question]
    page.wait("document.querySelector('#example h3').textContent.includes('390')")
    page.press("Enter")
    assert page.run(focused) == "example"
    page.press("Escape")
    assert page.run(focused) == "list"
    page.press("/")
    page.press("Escape")
    page.wait(f"matches.length === {SIZE}")
    assert page.run("[document.activeElement.id, $('search').value]") == ["search", ""]
    assert_quiet(page, made)


def test_hostile_text_stays_text(made: Made, page: Browser):
    source = made.page.read_text(encoding="utf-8")
    assert "<img" not in source and "default-src 'none'" in source and "unsafe-inline" not in source
    assert "innerHTML" not in source and "eval(" not in source
    update(page, b=made.ids[EVIL], example=EVIL, type=EVIL)
    page.wait(f"document.querySelector('#example h3').textContent === {json.dumps(EVIL)}")
    card = texts_of(page, "#example .card")[1]
    # name, answer, error, step, its query, node, passage; outline, notes, reasoning, module
    assert card.count(EVIL) >= 12 and page.run("document.title") == "Evaluation"
    harmful = "img, iframe, object, embed, [onerror], [onclick], [style*=url]"
    assert page.run(f"document.querySelectorAll('{harmful}').length") == 0
    scripts = page.run("[...document.scripts].filter(script => !script.type).length")
    assert scripts == 2 and page.run("document.querySelector('[href^=\"javascript\"]')") is None
    assert_quiet(page, made)


def test_matrix_with_a_single_cell(made: Made, page: Browser, tmp_path: Path):
    shutil.copytree(made.directory, tmp_path / "matrix")
    matrix = json.loads((tmp_path / "matrix/matrix.json").read_text())
    (tmp_path / "matrix/matrix.json").write_text(json.dumps(matrix | {"cells": matrix["cells"][:1]}))
    write_matrix_report(tmp_path / "page.html", tmp_path / "matrix")
    page.open((tmp_path / "page.html").as_uri())
    page.wait("!!document.querySelector('#example h3')")
    assert [text[:7] for text in texts_of(page, "#outcomes label")] == ["All400", "A right", "A wrong"]
    assert len(texts_of(page, "#example .card")) == 1 and page.run("$('paired').hidden")


@pytest.mark.slow
def test_cells_with_other_questions_or_without_right_answers(page: Browser, tmp_path: Path):
    a = add_cell(tmp_path, "a", numbered(0, 1, 2, 3), [None] * 4)
    add_cell(tmp_path, "b", numbered(0, 1, 2, 3), ["no"] * 4)

    def opened() -> str:
        write_matrix_report(tmp_path / "page.html", tmp_path)
        page.open("about:blank")
        page.open((tmp_path / "page.html").as_uri())
        page.wait("!!document.querySelector('#example h3')")
        return page.run("$('paired').textContent")

    assert opened().startswith("A − B over all 4 questions: +0.0 points [−")
    add_cell(tmp_path, "c", numbered(4, 5), ["yes", "no"])
    assert opened().startswith("No other cell has A's questions")
    assert [text.partition(" (")[0] for text in texts_of(page, "main h2")] == ["d", "d", "Examples"]
    update(page, a=a.id)
    assert texts_of(page, "#b option") == ["s · b"]
