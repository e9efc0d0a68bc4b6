"""The evaluation commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.commands import call, small_files
from support.matrices import numbered
from support.models import Chat, model_server
from support.paths import MODEL
from support.questions import compounds

from rag_train.eval.matrix.cell import load_matrix
from rag_train.eval.matrix.estimate import bound
from rag_train.eval.papers.measured import Measurements
from rag_train.eval.papers.sources import Request
from rag_train.retrieval.open import build_index
from rag_train.strategies.base import STRATEGIES, Named
from rag_train.strategies.baselines.reader import Direct
from rag_train.worlds.mini.world import World, WorldConfig

MINI = str(MODEL)


@pytest.mark.slow
def test_commands_on_the_mini_model(tmp_path: Path, capsys) -> None:
    world = World(WorldConfig())
    asked, several = world.questions("test")[:4], compounds(world, "test", 2)
    for name, records in (("multi", asked), ("compound", several), ("corpus", world.corpus())):
        (tmp_path / f"{name}.jsonl").write_text("".join(record.model_dump_json() + "\n" for record in records))
    build_index("bm25", tmp_path / "corpus.jsonl", tmp_path / "index", lambda done: None)
    output = str(tmp_path / "m")
    command = ["eval", "--model", f"mini={MINI}", "--index", str(tmp_path / "index"), "--output", output]
    command += ["--questions", str(tmp_path / "multi.jsonl"), "--questions", str(tmp_path / "compound.jsonl")]
    command += ["--strategy", "cot", "--strategy", "deeprag", "--engine", "transformers", "--no-instructions"]
    assert call(*command, "--json") == 0
    cells = json.loads(capsys.readouterr().out)
    assert [(cell["dataset"], cell["strategy"]) for cell in cells] == [
        ("multi", "cot"), ("multi", "deeprag"), ("compound", "cot"), ("compound", "deeprag")
    ]  # fmt: skip
    deeprag = cells[1]["summary"]
    assert deeprag["retrievals"]["mean"] > 0 and deeprag["fact_boundary"] and deeprag["fact_calibration"]["bins"]
    assert "compound" in cells[3]["summary"]["measures"]
    assert call("compare", output, "--cell", cells[0]["id"], "--cell", cells[1]["id"], "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["questions"] == 4
    assert call("export", output, str(tmp_path / "x"), "--format", "flashrag") == 0
    assert capsys.readouterr().out.endswith("/x: 8 files\n")
    assert call("judge", output, "--model", MINI, "--engine", "transformers", "--json") == 0
    assert {cell["summary"]["measures"]["judge"]["mean"] for cell in json.loads(capsys.readouterr().out)[-4:]}


@pytest.mark.slow
def test_roles_have_models_of_their_own(tmp_path: Path, capsys) -> None:
    """A checkpoint, as the recipes write it, takes a role beside the generator."""
    world = World(WorldConfig())
    for name, records in (("q", world.questions("test")[:2]), ("corpus", world.corpus())):
        (tmp_path / f"{name}.jsonl").write_text("".join(record.model_dump_json() + "\n" for record in records))
    build_index("bm25", tmp_path / "corpus.jsonl", tmp_path / "index", lambda done: None)
    trained = shutil.copytree(MINI, tmp_path / "trained")
    command = ["eval", "--model", MINI, "--index", str(tmp_path / "index"), "--output", str(tmp_path / "m")]
    command += ["--questions", str(tmp_path / "q.jsonl"), "--engine", "transformers", "--no-instructions", "--json"]
    for role, strategies in (
        ("revelator", ["hanrag"]),
        ("classifier", ["adaptive-rag", "uar"]),
        ("planner", ["planrag"]),
    ):
        chosen = [option for strategy in strategies for option in ("--strategy", strategy)]
        assert call(*command, "--role", f"{role}={trained}", *chosen) == 0
        cells = json.loads(capsys.readouterr().out)
        assert [cell["summary"]["errors"] for cell in cells] == [0] * len(strategies)
        settings = json.loads((tmp_path / "m" / f"cells/{cells[0]['id']}.settings.json").read_text())
        assert list(settings["roles"]) == [role]


@pytest.mark.slow
def test_dry_run_estimates_what_is_missing_and_keeps_nothing(tmp_path: Path, capsys) -> None:
    small_files(tmp_path, 40)
    output = tmp_path / "m"
    command = ["eval", "--model", "gpt", "--index", str(tmp_path / "index"), "--output", str(output)]
    command += ["--questions", str(tmp_path / "q.jsonl"), "--strategy", "rag", "--strategy", "rag,max_retrievals=0"]
    with model_server(Chat()) as server:
        command += ["--url", server.url, "--engine"]
        priced = [*command, "chat,input_price=2,output_price=10"]
        assert call(*priced, "--dry-run", "--json") == 0
        found, limited = json.loads(capsys.readouterr().out)
        assert (found["questions"], found["asked"], found["calls"], found["searches"]) == (40, 4, 40, 40)
        assert (limited["searches at most"], limited["calls at most"]) == (0, 40) and not output.exists()
        dollars = (2 * found["tokens read"] + 10 * found["tokens written"]) / 1e6
        assert found["dollars"] == pytest.approx(dollars) and dollars > 0 and found["MiB"] > 0
        assert call(*priced, "--dry-run") == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "Dry run" in text and "Means of 8 questions" in text and " all 80 " in text
        assert call(*command, "chat", "--sample", "30") == 0
        capsys.readouterr()
        assert call(*command, "chat", "--dry-run", "--json") == 0
        assert [each["questions"] for each in json.loads(capsys.readouterr().out)] == [10, 10]
        assert call(*command, "chat", "--sample", "30", "--dry-run") == 0
        assert "all questions are answered already" in capsys.readouterr().out
    places = command[3 : command.index("--url")]
    assert call("eval", "--watch", str(output), *places, "--dry-run") == 2
    assert "--dry-run: not with --watch" in capsys.readouterr().err


def test_bounds_are_stated_for_default_settings_and_three_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bound("deeprag", 3) == STRATEGIES["deeprag"].bound and bound("deeprag", 4) is None
    assert bound("deeprag,max_steps=9", 3) is None
    assert bound("levelrag,max_calls=40,max_retrievals=null", 3) == (40, STRATEGIES["levelrag"].bound.retrievals)
    monkeypatch.setitem(STRATEGIES, "own", Named(Direct, {}))
    assert bound("own", 3) is None, "a user's own strategy states no bound"


def adapter(folder: Path, **tensors: tuple[int, ...]) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": 4, "base_model_name_or_path": MINI}))
    save_file({name: np.zeros(shape, np.float32) for name, shape in tensors.items()}, folder / "a.safetensors")
    return str(folder)


@pytest.mark.slow
def test_rejects_mistakes_before_writing(tmp_path: Path, capsys) -> None:
    asked, wrong = small_files(tmp_path, 1) / "q.jsonl", tmp_path / "wrong.jsonl"
    wrong.write_text('{"prompt": "?", "target": "!"}\n')
    embeddings = adapter(tmp_path / "e", **{"base_model.model.model.embed_tokens.weight": (7, 128)})
    head = adapter(tmp_path / "h", **{"base_model.model.lm_head.lora_B.weight": (7, 4)})
    output, index = tmp_path / "m", ["--index", str(tmp_path / "index")]
    base = ["--questions", str(asked)]
    for arguments, problem in (
        ([*index, *base], "give either --model, or --watch"),
        (["--model", MINI, *base], "give either --index, or --retriever"),
        (
            ["--model", MINI, "--retriever", "bm25", *base],
            "--retriever bm25: the name is missing; write NAME=PLACE",
        ),
        (["--model", MINI, "--model", f"{MINI}/", *index, *base], "--model: the name '"),
        (
            ["--model", MINI, *index, "--questions", str(wrong)],
            "wrong.jsonl, line 1: no known format has the fields",
        ),
        (["--model", MINI, *index, "--questions", f"nq:{wrong}"], "wrong.jsonl, line 1: no field 'question'"),
        (["--model", MINI, *index, *base, "--columns", "question=q"], "--columns question=q: answers is missing"),
        (["--model", MINI, *index, *base, "--adapter", embeddings], "made for a vocabulary of 7 tokens, but model"),
        (["--model", head, *index, *base], "h: made for a vocabulary of 7 tokens, but model"),
        (["--model", str(tmp_path), *index, *base], "no config.json"),
    ):
        assert call("eval", *arguments, "--strategy", "direct", "--output", str(output)) == 2
        *before, error = capsys.readouterr().err.splitlines()
        assert error.startswith("error: ") and problem in error
        assert before in ([], ["1 question of q: direct"])
        assert not output.exists()


def test_a_missing_index_is_reported_before_an_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """U6: it was reported after a minute, once the engine had been loaded."""

    def start(*arguments: object) -> None:
        raise AssertionError("an engine")

    monkeypatch.setattr("rag_train.strategies.kit.open_engine", start)
    (tmp_path / "q.jsonl").write_text(numbered(0)[0].model_dump_json() + "\n")
    evaluation = ["eval", "--strategy", "rag", "--questions", str(tmp_path / "q.jsonl"), "--output", str(tmp_path)]
    for command in (evaluation, ["serve", "strategy", "rag"]):
        assert call(*command, "--model", MINI, "--index", str(tmp_path / "gone")) == 2
        assert "gone': no such directory; give an index directory" in capsys.readouterr().err


def test_results_go_to_standard_output(tmp_path: Path, capsys) -> None:
    asked, predictions = tmp_path / "q.jsonl", tmp_path / "p.json"
    asked.write_text(numbered(0)[0].model_dump_json() + "\n")
    for name, answer in (("first", "yes"), ("second", "no")):
        predictions.write_text(json.dumps({"q0": answer}))
        command = ["score", str(predictions), "--questions", str(asked), "--output", str(tmp_path / "m")]
        assert call(*command, "--name", name) == 0
        said = capsys.readouterr()
        assert "Answers and retrievals" in said.out and not said.err
    assert call("compare", str(tmp_path / "m")) == 0
    said = capsys.readouterr()
    assert "Compared with first" in said.out and not said.err


def test_unanswerable_questions_are_left_out_or_scored_by_choice(tmp_path: Path, capsys) -> None:
    asked, predictions = tmp_path / "q.json", tmp_path / "p.json"
    paragraph = {"context": "Ann is a poet.", "qas": [{"id": "a", "question": "?", "answers": [{"text": "Ann"}]}]}
    paragraph["qas"].append({"id": "b", "question": "When?", "answers": [], "is_impossible": True})
    release = {"version": "v2.0", "data": [{"title": "Ann", "paragraphs": [paragraph]}]}
    asked.write_text(json.dumps(release, indent=1))
    command = ["score", str(predictions), "--questions", str(asked), "--output", str(tmp_path / "m"), "--name", "x"]
    for choice, answers, told in (
        ([], {"a": "Ann", "b": ""}, "leave such questions out with --unanswerable skip, or score"),
        (["--unanswerable", "all"], {"a": "Ann", "b": ""}, "--unanswerable all: unknown; give skip or abstain"),
        (["--unanswerable", "skip"], {"a": "Ann", "b": "Bo"}, "1 unanswerable question left out"),
        (["--unanswerable", "abstain"], {"a": "Ann", "b": ""}, "scored: a refusal to answer is right"),
    ):
        predictions.write_text(json.dumps(answers))
        assert call(*command, *choice) == (0 if choice and choice[1] != "all" else 2)
        assert told in " ".join(capsys.readouterr().err.split())
        if choice and choice[1] != "all":
            [cell] = load_matrix(tmp_path / "m").cells
            assert (cell.summary.questions, cell.summary.em.mean) == (1 + ("abstain" in choice), 1)


def test_dry_run_of_reproduce_asks_a_few_questions_of_each_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    asked = small_files(tmp_path, 40)
    wanted = [Request("base", "cot", "popqa"), Request("base", "rag", "popqa"), Request("stage1", "rag", "popqa")]
    monkeypatch.setattr(Measurements, "wanted", lambda *_: wanted)
    work = asked / "work"
    command = ["reproduce", "deeprag", "table1", "--questions", f"popqa={asked / 'q.jsonl'}", "--work", str(work)]
    command += ["--model", "base=gpt", "--index", str(asked / "index")]
    with model_server(Chat()) as server:
        command += ["--url", server.url, "--engine", "chat,input_price=2,output_price=10", "--dry-run"]
        assert call(*command, "--json") == 0
        cells = json.loads(capsys.readouterr().out)
        assert not work.exists() and [cell["cell"] for cell in cells] == ["base/cot/popqa/0", "base/rag/popqa/0"]
        assert all((cell["questions"], cell["asked"]) == (40, 4) and cell["calls"] >= 40 for cell in cells)
        assert all(cell["MiB"] > 0 and cell["dollars"] > 0 for cell in cells)
        assert call(*command) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    base, total = (row for row in rows if row and row[0] in ("base", "all"))
    assert base[1:] == total[1:] and base[1:3] == ["2", "80"]
