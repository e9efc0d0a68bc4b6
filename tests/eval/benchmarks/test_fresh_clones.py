"""Tests and demos in fresh clones: what is counted, and that the busy loops end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from rag_train.eval.benchmarks import fresh_clones, fresh_demos

MAKEFILE = """
.venv/.ready:
\tmkdir -p .venv/bin && cp /bin/true .venv/bin/python && touch $@
test: .venv/.ready
\t@case "$$PYTEST_ADDOPTS" in *--cov=eval*json:*) \\
\t\techo '{{"totals": {{"num_statements": 10, "covered_lines": 9}}}}' > "$${{PYTEST_ADDOPTS##*json:}}";; esac
\t@test ! -e untracked && echo '3 passed, 1 skipped in 2s'; exit {code}
"""

DEMO = """
.venv/.ready:
\tmkdir -p .venv/bin runs/demo && cp {results} runs/demo && cp /bin/true .venv/bin/rag-train
"""


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Commit a Makefile with the given text to a new repository, which becomes the working directory."""
    monkeypatch.chdir(tmp_path)

    def commit(makefile: str) -> None:
        (tmp_path / "Makefile").write_text(makefile)
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
        for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
            subprocess.run([*git, *command], check=True)

    return commit


@pytest.mark.parametrize(("code", "green", "coverage"), [(0, True, False), (1, False, False), (0, True, True)])
def test_runs_make_in_a_clone_of_the_commit(tmp_path: Path, commit, code: int, green: bool, coverage: bool):
    commit(MAKEFILE.format(code=code))
    (tmp_path / "untracked").touch()
    found = fresh_clones.run("HEAD", busy=False, coverage=coverage)
    assert found["seconds"] >= found["install_seconds"] > 0
    assert (found["green"], found["passed"], found["skipped"], found["busy"]) == (green, 3, 1, False)
    assert (found.get("lines"), found.get("covered")) == ((10, 9) if coverage else (None, None))


def test_loops_end(monkeypatch: pytest.MonkeyPatch):
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    with pytest.raises(KeyError), fresh_clones.loops(2):
        assert [process.poll() for process in started] == [None, None]
        raise KeyError
    assert all(process.poll() is not None for process in started)


def test_every_demo_is_added(tmp_path: Path, commit, monkeypatch: pytest.MonkeyPatch):
    commit(DEMO.format(results=ROOT / "docs/results/demo.json"))
    monkeypatch.setattr(sys, "argv", ["fresh_demos", "--runs", "2", "--output", str(tmp_path)])
    fresh_demos.main()
    first, second = json.loads((tmp_path / fresh_demos.FILE).read_text())["runs"]
    assert first["command"] == "rag-train demo"
    assert first["install_seconds"] > 0 and first["seconds"] > 0
    assert first["figures"] == second["figures"]
    assert 0 < first["figures"]["deeprag, stage 2"]["em"] < 1
