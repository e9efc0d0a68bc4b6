"""The page of the demo: it escapes every text and needs no network."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from support.browser import chromium
from support.paths import DEMO
from support.trajectories import COT, EVIL, QUESTIONS, RUN

from rag_train.eval.demo.claims import Claim
from rag_train.eval.demo.page import headlines, write_report
from rag_train.eval.demo.results import Example, Provenance, ReportData, load_results, save_results
from rag_train.eval.matrix.tables import decision_table, main_table
from rag_train.eval.metrics.summary import pool, summarize
from rag_train.schema import Decision, Step


def test_page_escapes_every_text(tmp_path: Path):
    run = summarize(QUESTIONS, RUN, strategy=EVIL, stage=EVIL, cot=COT, known={"fact 0?": True})
    evil = RUN[0].model_copy(
        update={"answer": EVIL, "steps": [Step(subquery=EVIL, decision=Decision.RETRIEVE, answer=EVIL)]}
    )
    data = ReportData(
        title=EVIL,
        summary=EVIL,
        claims=[Claim(text=EVIL, verdict=EVIL, evidence=EVIL)],
        runs=[run],
        curves=[],
        timings=[],
        examples=[Example(question=QUESTIONS[2], trajectories={run.name: evil})],
        provenance=Provenance(machine=EVIL, code_version=EVIL, versions={EVIL: EVIL}, seeds=[0], recipe=EVIL),
    )
    save_results(tmp_path / "r.json", data)
    assert load_results(tmp_path / "r.json") == data
    write_report(tmp_path / "r.html", data)
    page = (tmp_path / "r.html").read_text()
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    for table in (main_table([run]), decision_table([run])):
        assert "<script>" not in table.html()
        assert all((table.markdown(), table.latex(), table.csv()))
        Console(file=io.StringIO()).print(table)


@pytest.mark.browser
def test_first_screen_has_three_numbers_and_the_plot(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    data = load_results(DEMO)
    runs = pool(data.runs)
    assert [number for number, _ in headlines(runs, data.claims)] == ["40.7%", "1.21", "5 of 7"]
    assert main_table(runs).columns[:4] == ["Strategy", "EM", "F1", "Retrievals"]
    write_report(tmp_path / "demo.html", data)
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        browser.resize(1300, 800)
        browser.open((tmp_path / "demo.html").as_uri())
        browser.wait("document.readyState === 'complete'")
        assert browser.run("document.querySelector('.first').getBoundingClientRect().bottom") <= 800
        browser.resize(400, 800)
        assert browser.run("document.documentElement.scrollWidth") <= 400
