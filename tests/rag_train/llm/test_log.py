"""The log file of the engines' libraries: real engines print nothing but our own lines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from rag_train.errors import UserError
from rag_train.llm.log import log_file, starting
from rag_train.progress import console

SCRIPT = """
import asyncio, multiprocessing, sys
from rag_train.errors import UserError
from rag_train.llm.base import EngineError, Sampling
from rag_train.llm.engines import EngineConfig, open_engine

async def main(model, kind):
    async with open_engine(model, EngineConfig(kind=kind)) as engine:
        completion = await engine.complete("Question: who?\\n", Sampling(max_tokens=4))
        print("tokens", completion.usage.completion_tokens)
        if kind == "vllm":
            for process in multiprocessing.active_children():
                process.kill()
            for _ in range(2):
                try:
                    await engine.complete("Question: when?\\n", Sampling(max_tokens=4))
                except EngineError:
                    print("EngineError")

if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except UserError as error:
        print(error)
"""


def run(model: Path, kind: str, directory: Path) -> tuple[str, str, Path]:
    """Start and use an engine; return standard output, standard error, and the log file in ``directory``."""
    (directory / "script.py").write_text(SCRIPT)
    # Trainers that ran in this process have switched off the progress bars that the log should hold.
    environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    environment["RAG_TRAIN_CACHE"] = str(directory / "cache")
    process = subprocess.run(
        [sys.executable, str(directory / "script.py"), str(model), kind],
        env=environment | {"RAG_TRAIN_LOG_DIR": str(directory / "logs")},
        capture_output=True,
        text=True,
        check=True,
    )
    [log] = (directory / "logs").iterdir()
    return process.stdout, process.stderr, log


@pytest.fixture(scope="module")
def broken(mini_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose weights have the wrong shape, which only the loading of the weights can notice."""
    directory = tmp_path_factory.mktemp("broken")
    for path in mini_model.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())
    weights = load_file(mini_model / "model.safetensors")
    save_file({name: weight[:3].clone() for name, weight in weights.items()}, directory / "model.safetensors")
    return directory


@pytest.mark.release
@pytest.mark.engine
def test_vllm_prints_only_our_lines(mini_model: Path, tmp_path: Path):
    out, err, log = run(mini_model, "vllm", tmp_path)
    assert out == "tokens 4\nEngineError\nEngineError\n"
    assert err == f"starting vLLM with {mini_model}\n{mini_model.name}: vLLM has stopped; see {log}\n"
    assert "safetensors" in log.read_text()


@pytest.mark.slow
def test_transformers_prints_only_our_line(mini_model: Path, tmp_path: Path):
    out, err, log = run(mini_model, "transformers", tmp_path)
    assert out == "tokens 4\n"
    assert err == f"starting transformers with {mini_model}\n"
    assert "Loading weights" in log.read_text()


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param("vllm", "vLLM", marks=pytest.mark.release), ("transformers", "transformers")],
)
@pytest.mark.engine
def test_broken_checkpoint_error_names_the_log_file(broken: Path, kind: str, name: str, tmp_path: Path):
    out, err, log = run(broken, kind, tmp_path)
    assert out.startswith(f"model {broken}: {name} did not start (") and out.endswith(f"); see {log}\n")
    assert "Error: " in out and out.count("\n") == 1
    assert err == f"starting {name} with {broken}\n"
    assert "Traceback" in log.read_text()


@pytest.fixture
def own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A log file for this test alone."""
    log_file.cache_clear()
    monkeypatch.setenv("RAG_TRAIN_LOG_DIR", str(tmp_path / "logs"))
    monkeypatch.setenv("RAG_TRAIN_CACHE", str(tmp_path / "cache"))
    yield
    log_file.cache_clear()


@pytest.mark.usefixtures("own_log")
def test_only_our_console_reaches_the_terminal_during_a_start(capfd: pytest.CaptureFixture[str]):
    with starting("an engine", "m"):
        print("a library")
        print("its errors", file=sys.stderr)
        subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
        os.write(2, b"C code\n")
        console.print("ours")
    print("after")
    out, err = capfd.readouterr()
    assert (out, err) == ("after\n", "starting an engine with m\nours\n")
    assert Path(log_file().name).read_text() == "a library\nits errors\na child\nC code\n"


@pytest.mark.usefixtures("own_log")
def test_tells_how_long_the_last_start_took(capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        with starting("an engine", "m"):
            pass
    with starting("an engine", "another model"):
        pass
    first, again, other = capsys.readouterr().err.splitlines()
    assert (first, again) == ("starting an engine with m", f"{first} (took 0 s last time)")
    assert other == "starting an engine with another model"


@pytest.mark.usefixtures("own_log")
def test_failed_start_gives_cause_and_log_file():
    with (
        pytest.raises(UserError, match=r"model m: an engine did not start \(ValueError: bad shape\); see .*\.log$"),
        starting("an engine", "m"),
    ):
        raise ValueError("bad\nshape")
    with pytest.raises(UserError, match=r"\(OSError\); see"), starting("an engine", "m"):
        raise OSError
    with pytest.raises(UserError, match=r"^its own message$"), starting("an engine", "m"):
        raise UserError("its own message")


@pytest.mark.usefixtures("own_log")
def test_rejects_log_directory_that_cannot_be_created(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAG_TRAIN_LOG_DIR", "/dev/null/logs")
    with pytest.raises(UserError, match=r"cannot create a log file in /dev/null/logs: .*; set RAG_TRAIN_LOG_DIR"):
        log_file()
