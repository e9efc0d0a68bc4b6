"""The command line: help without heavy imports, and user errors in one line with exit code 2."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from support.commands import call
from support.paths import ROOT

from rag_train.cli.options import DATA, EVALUATION, SERVING, START, TRAINING
from rag_train.worlds.mini.world import World, WorldConfig, write_world


@pytest.mark.slow
def test_help_needs_no_heavy_imports():
    code = (
        "import sys; sys.argv = ['rag-train', '--help']\n"
        "from rag_train.cli.app import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.exit(bool({'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "synth" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("demo", "demo, seeds 0: models and data in"),
        ("merge model adapter merged", "merging adapter into model"),
        ("validate model held_out.jsonl", "held_out.jsonl: examples to be written by model"),
        ("reproduce levelrag --model base=m --questions nq=q --index i", "tables, measured in runs/reproduce"),
        ("serve strategy rag --model model --index index", "opening index and model"),
        ("init", "looking for accelerators"),
    ],
)
def test_the_first_line_needs_no_heavy_imports(tmp_path: Path, arguments: str, line: str):
    code = (
        f"import sys; sys.argv = ['rag-train', *{arguments.split()}]\n"
        "sys.modules |= dict.fromkeys(('torch', 'transformers', 'vllm'))  # importing them fails\n"
        "from rag_train.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert line in done.stderr.splitlines()[0]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    write_world(World(WorldConfig(films=20, people=20, cities=4, countries=2)), tmp_path / "world")
    return tmp_path / "world"


@pytest.mark.slow
def test_index_reports_the_line_of_a_broken_corpus(capsys, world: Path, tmp_path: Path):
    assert call("index", str(world / "corpus.jsonl"), str(tmp_path / "index"), "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["passages"] == 84 and "already an index" not in said.err
    assert call("index", str(world / "corpus.jsonl"), str(tmp_path / "index")) == 0
    assert "already an index; it stays in use until the new one replaces it" in capsys.readouterr().err
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"id": "1", "text": "a"}\n{"id": "2"\n')
    for corpus, message in ((broken, "line 2"), (tmp_path / "gone.jsonl", "gone.jsonl")):
        assert call("index", str(corpus), str(tmp_path / "other")) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--seeds", "a"], "--seeds a: not a list of integers"),
        (["demo", "test_question=1"], "unknown key 'test_question'; did you mean 'test_questions'?"),
        (["train", "gone.yaml"], "recipe gone.yaml: No such file or directory"),
        (["synth", "deeprga"], "synth deeprga: unknown method 'deeprga'; did you mean deeprag"),
        (["synth", "deeprag"], "synth deeprag: no recipe; give one, such as recipes/deeprag_synth.yaml"),
        (["synth", "deeprag", "recipes/deeprag_synth.yaml"], "no file 'data/hotpotqa/train.jsonl'"),
        (["index", "README.md", "x", "--kind", "sparse"], "the kinds are bm25, dense, lucene"),
        (["index", "README.md", "x", "--search", "nprobe=2"], "add --kind dense"),
        (["serve", "retriever", "tests"], "tests: "),
        (["board", "gone"], "gone: no such directory"),
        (["board", "tests", "--chat", "a=127.0.0.1:1"], "--chat a=127.0.0.1:1: not the address of a service"),
        (["board", "tests", "--chat", "http://127.0.0.1:1"], "the name is missing"),
        (["report", "gone.json", "out.html"], "gone.json: No such file or directory"),
    ],
)
def test_user_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys, arguments: list[str], message: str):
    monkeypatch.chdir(ROOT)
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


@pytest.mark.parametrize("output", ["file/world", "x" * 300, "locked/world"])
def test_an_output_that_cannot_be_written_gives_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path, output: str
):
    (tmp_path / "file").touch()
    if output.startswith("locked"):
        monkeypatch.setattr(Path, "mkdir", full_disk)
    assert call("world", str(tmp_path / output)) == 2
    announcement, error = capsys.readouterr().err.splitlines()
    assert "mini world" in announcement
    assert error.startswith("error: ") and "choose a place" in error


def full_disk(*arguments: object, **options: object) -> None:
    raise OSError(28, "No space left on device")


def test_help_groups_the_commands_and_version_is_the_packages(capsys):
    assert call("--help") == 0
    shown = capsys.readouterr().out
    places = [shown.index(f" {group} ") for group in (START, DATA, TRAINING, EVALUATION, SERVING)]
    assert places == sorted(places) and " Commands " not in shown
    assert call("--version") == 0
    assert capsys.readouterr().out == f"rag-train {version('rag-train')}\n"
