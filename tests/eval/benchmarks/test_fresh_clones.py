"""Tests in fresh clones: what is counted, and that the busy loops end."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rag_train.eval.benchmarks import fresh_clones

MAKEFILE = """
.venv/.ready:
\tmkdir -p .venv/bin && cp /bin/true .venv/bin/python && touch $@
test: .venv/.ready
\t@case "$$PYTEST_ADDOPTS" in *--cov=eval*json:*) \\
\t\techo '{{"totals": {{"num_statements": 10, "covered_lines": 9}}}}' > "$${{PYTEST_ADDOPTS##*json:}}";; esac
\t@test ! -e untracked && echo '3 passed, 1 skipped in 2s'; exit {code}
"""


@pytest.mark.parametrize(("code", "green", "coverage"), [(0, True, False), (1, False, False), (0, True, True)])
def test_runs_make_in_a_clone_of_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, green: bool, coverage: bool
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").write_text(MAKEFILE.format(code=code))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
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
