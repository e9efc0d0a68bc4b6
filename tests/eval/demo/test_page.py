"""The page of the demo: it escapes every text and needs no network."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from support.trajectories import COT, EVIL, QUESTIONS, RUN

from rag_train.eval.demo.claims import Claim
from rag_train.eval.demo.page import write_report
from rag_train.eval.demo.results import Example, Provenance, ReportData, load_results, save_results
from rag_train.eval.matrix.tables import decision_table, main_table
from rag_train.eval.metrics.summary import summarize
from rag_train.schema import Decision, Step


def test_page_escapes_every_text(tmp_path: Path):
    run = summarize(QUESTIONS, RUN, strategy=EVIL, stage=EVIL, cot=COT, known={"fact 0?": True})
    step = Step(subquery=EVIL, decision=Decision.RETRIEVE, answer=EVIL)
    evil = RUN[0].model_copy(update={"answer": EVIL, "steps": [step]})
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
