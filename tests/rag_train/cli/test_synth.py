"""Synthesis by a closed model, with the shipped recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import call, small_files
from support.models import Chat, model_server, polite
from support.paths import ROOT

from rag_train.data_synth.registry import METHODS
from rag_train.recipe import describe

RECIPE = str(ROOT / "recipes/planrag_teacher.yaml")
PLAN = [
    {"id": "Q1.1", "question": "Who made film 1?", "parents": []},
    {"id": "Q2.1", "question": "Where was <A1.1> born?", "parents": ["Q1.1"]},
]


def plans(messages: list[dict[str, str]]) -> str:
    return json.dumps(PLAN) if "maker of film" in messages[0]["content"] else polite(messages)


@pytest.mark.slow
def test_planrag_teacher_runs_through_a_closed_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    small_files(tmp_path, 0)
    questions = [
        {"id": f"q{i}", "question": f"Where was the maker of film {i} born?", "answers": ["Nevada"]}
        for i in range(200)
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    monkeypatch.setenv("TEST_KEY", "secret")
    command = [
        "synth",
        "planrag",
        RECIPE,
        f"questions=[{tmp_path}/q.jsonl]",
        "held_out=[]",
        "sample=null",
        "--json",
    ]
    command += [f"index={tmp_path}/index", f"output={tmp_path}/teacher.jsonl", "engine.key=TEST_KEY"]
    command += [f"engine.cache={tmp_path}/answers.db", "engine.requests_per_minute=null"]
    with model_server(Chat(plans), key="secret") as server:
        command += [f"engine.urls=[{server.url}]", "engine.tokens_per_minute=null"]
        assert call(*command, "--dry-run") == 0
        estimate = json.loads(capsys.readouterr().out)
        assert (estimate["items"], estimate["items_done"], estimate["engine_calls"]) == (200, 2, 200)
        assert estimate["dollars"] > 0 and not (tmp_path / "teacher.jsonl").exists()
        probes = len(server.asked) - 2
        assert call(*[part for part in command if part != "--json"], "--dry-run") == 0
        table = " ".join(capsys.readouterr().out.split())
        assert "Dry run" in table and "engine calls 200" in table and "Means of 2 items" in table
        del server.asked[2 + probes :]
        assert call(*command) == 0
        summary = json.loads(capsys.readouterr().out)
        assert summary["records"] == 200 and summary["counts"]["depth 2"] == 200
        assert len(server.asked) == 200 + 2 * probes, "the two answers of the dry run are not paid for again"
        assert call(*command, "--dry-run", "--shard", "1/2") == 2
        for options, message in (
            (["--device", "h100"], "--device h100: only with --dry-run"),
            (["--dry-run", "--device", "h100"], "--device h100: the recipe starts no engine"),
            (["--dry-run", "--device", "h1"], "--device h1: not in the table"),
        ):
            capsys.readouterr()
            assert call(*command, *options) == 2
            assert message in capsys.readouterr().err
    assert "secret" not in (tmp_path / "teacher.jsonl.meta.json").read_text()


def test_an_empty_file_is_an_error_with_a_remedy(tmp_path: Path, capsys):
    small_files(tmp_path, 0)
    (tmp_path / "q.jsonl").write_text('{"id": "q", "question": "Who?", "answers": ["no annotated hops"]}\n')
    keys = [f"questions=[{tmp_path}/q.jsonl]", "held_out=[]", f"index={tmp_path}/index"]
    keys.append(f"output={tmp_path}/plans.jsonl")
    assert call("synth", "planrag", str(ROOT / "recipes/gold.yaml"), *keys) == 2
    error = capsys.readouterr().err
    assert "0 records of 1 questions; rejected: " in error and "the file is empty; check the questions" in error


def test_methods_are_listed_and_each_says_what_its_recipe_takes(capsys):
    assert call("synth") == 0
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert listed.keys() == METHODS.keys()
    for name, method in METHODS.items():
        assert all((ROOT / f"recipes/{start}.yaml").exists() for start in method.starts)
        assert call("synth", name, "--help") == 0
        said = capsys.readouterr().out
        assert listed[name].split(maxsplit=1)[1] in said and f"recipes/{method.starts[0]}.yaml" in said
        assert all(f"  {key.name} (" in said for key in describe(method.recipe_type))
    assert call("synth", "--help") == 0
    assert "--push-to-hub" in (said := capsys.readouterr().out) and listed["uar"] in said
