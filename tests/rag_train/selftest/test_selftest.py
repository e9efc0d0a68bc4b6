"""The self-test: what becomes of parts that pass, fail, hang and crash, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.commands import call

from rag_train.errors import UserError
from rag_train.selftest.registry import FAIL, NOT_HERE, PASS, Part, Result, blocked, choose, load
from rag_train.selftest.runner import run

OWN_PARTS = """
import os, subprocess, sys, time
from rag_train.selftest.registry import NotHere, part

CHILD = [sys.executable, "-c", "import time; time.sleep(600)", "selftest-child"]

@part("works", short=True)
def works(work):
    (work.folder / "large").write_text("x")
    return "all is well"

@part("is wrong")
def wrong(work):
    print("what it printed")
    raise ValueError("two is not one")

@part("no device")
def device(work):
    raise NotHere("this machine has no GPU")

@part("comes after", after=["is wrong"])
def after(work):
    return "never"

@part("hangs", limit=1)
def hangs(work):
    subprocess.Popen(CHILD, start_new_session=True)
    time.sleep(600)

@part("crashes", process="shared")
def crashes(work):
    subprocess.Popen(CHILD, start_new_session=True)
    os.kill(os.getpid(), 11)

@part("is beside", process="shared")
def beside(work):
    return "never"

@part("goes on")
def goes_on(work):
    return "still here"
"""
RUN = """
import sys
from rag_train.selftest.registry import load
from rag_train.selftest.runner import run
parts = load("own_parts")
for result in run([parts[name] for name in sys.argv[1:]], "own_parts"):
    print(result.name, result.status, flush=True)
"""


@pytest.fixture
def own_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Part]:
    """Parts of this test, which the processes of the self-test import, too; files go to ``tmp_path/tmp``."""
    (tmp_path / "own_parts.py").write_text(OWN_PARTS)
    (tmp_path / "tmp").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.delitem(sys.modules, "own_parts", raising=False)
    return dict(load("own_parts"))


def children() -> list[psutil.Process]:
    """The processes that parts of this test have started and that live."""
    return [each for each in psutil.process_iter(["cmdline"]) if "selftest-child" in (each.info["cmdline"] or [])]


@pytest.mark.slow
def test_each_part_has_its_own_result_and_nothing_is_left(own_parts: dict[str, Part], tmp_path: Path):
    begun: list[str] = []
    results = {each.name: each for each in run(list(own_parts.values()), "own_parts", begun.append)}
    assert [*results] == [*own_parts] and begun == [name for name in own_parts if name != "is beside"]
    assert {name: (result.status, result.detail) for name, result in results.items()} == {
        "works": (PASS, "all is well"),
        "is wrong": (FAIL, "ValueError: two is not one"),
        "no device": (NOT_HERE, "this machine has no GPU"),
        "comes after": (NOT_HERE, "needs 'is wrong', which failed"),
        "hangs": (FAIL, "not done after 1 s"),
        "crashes": (FAIL, "its process was ended by SIGSEGV"),
        "is beside": (NOT_HERE, "shares a process with 'crashes', which ended it"),
        "goes on": (PASS, "still here"),
    }
    assert "what it printed" in results["is wrong"].log and not results["works"].log
    assert children() == [] and [*(tmp_path / "tmp").iterdir()] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_process_and_no_file(number: signal.Signals, own_parts: dict[str, Part], tmp_path: Path):
    (tmp_path / "own_parts.py").write_text(OWN_PARTS.replace("limit=1", "limit=600"))
    (tmp_path / "run.py").write_text(RUN)
    command = [sys.executable, str(tmp_path / "run.py"), "works", "hangs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "works pass\n"
        while not children():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        process.wait()
    assert children() == [] and [*(tmp_path / "tmp").iterdir()] == []


def test_parts_are_chosen_by_a_part_of_their_name_with_what_they_come_after(own_parts: dict[str, Part]):
    assert [each.name for each in choose(own_parts, ["AFTER"], False)] == ["is wrong", "comes after"]
    assert [each.name for each in choose(own_parts, [], True)] == ["works"]
    assert [each.name for each in choose(own_parts, [], False)] == [*own_parts]
    with pytest.raises(UserError, match=r"^nothing: no part of that name; the parts are works, is wrong, "):
        choose(own_parts, ["nothing"], False)


def test_what_needs_an_impossible_part_is_not_possible_either():
    each = Part("b", str, True, ("a",), "b", 1)
    assert blocked(each, [Result("a", PASS, 0, "")]) is None
    assert blocked(each, [Result("a", NOT_HERE, 0, "")]) == "needs 'a', which is not possible here"


def test_the_short_form_has_all_that_its_parts_come_after():
    parts = load()
    assert all(parts[name].short for each in parts.values() if each.short for name in each.after)


@pytest.mark.slow
def test_the_file_for_an_issue_has_versions_and_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert call("selftest", "pytorch", "--json", tmp_path / "selftest.json") == 0
    written = json.loads((tmp_path / "selftest.json").read_text())
    [result] = written["parts"]
    assert (result["name"], result["status"]) == ("PyTorch", PASS) and result["seconds"] > 0
    assert written["packages"]["torch"] and written["machine"]["python"] and "devices" in written["devices"]
    assert f"1/1  PyTorch  {PASS}" in capsys.readouterr().out


@pytest.mark.release
def test_the_short_form_passes_on_this_machine(capsys: pytest.CaptureFixture[str]):
    code = call("selftest", "--short")
    assert code == 0, capsys.readouterr()
