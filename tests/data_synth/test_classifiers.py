"""Labels of Adaptive-RAG's and UAR's classifiers, from the command line."""

import json
from pathlib import Path

import pytest
from support.paths import ROOT
from support.synthesis import write

from rag_train.miniworld.world import World
from rag_train.questions.load import load_questions
from rag_train.schema import Question, Trajectory

RECIPE = str(ROOT / "recipes/router_synth.yaml")


@pytest.fixture
def keys(world: World, tmp_path: Path) -> list[str]:
    """Recipe keys of two runs over the world's questions: of three answers, ``direct`` has the first correct and
    ``rag`` the second."""
    questions = world.questions("dev")
    write(tmp_path / "questions.jsonl", questions)
    for correct, name in enumerate(("direct", "rag")):
        trajectories = [
            Trajectory(
                question_id=question.id,
                question=question.question,
                strategy=name,
                answer=question.answers[0] if i % 3 == correct else "?\u2028",
            )
            for i, question in enumerate(questions)
        ]
        write(tmp_path / f"{name}.jsonl", trajectories)
    return [f"{name}={tmp_path}/{name}.jsonl" for name in ("questions", "direct", "rag")]


def test_labels_follow_the_answers_of_both_runs(keys: list[str], tmp_path: Path, call, capsys):
    questions = load_questions(tmp_path / "questions.jsonl")
    assert call("synth", "adaptive-rag", RECIPE, *keys, f"output={tmp_path}/a.jsonl", "--json") == 0
    labels = json.loads(capsys.readouterr().out)["counts"]
    single = sum(q.hops == 1 for i, q in enumerate(questions) if i % 3 == 2)
    assert labels == {"A": (len(questions) + 2) // 3, "B": (len(questions) + 1) // 3 + single} | (
        {"C": len(questions) // 3 - single}
    )
    assert call("synth", "uar", RECIPE, *keys, f"output={tmp_path}/u.jsonl", "--json") == 0
    assert json.loads(capsys.readouterr().out)["records"] == 5 * len(questions)


def test_rejects_a_run_that_lacks_a_question(keys: list[str], tmp_path: Path, call, capsys):
    extra = Question(id="extra", question="Who?", answers=["a"])
    write(tmp_path / "questions.jsonl", [*load_questions(tmp_path / "questions.jsonl"), extra])
    assert call("synth", "uar", RECIPE, *keys, f"output={tmp_path}/u.jsonl") == 2
    assert "direct.jsonl: no trajectory of question 'extra'" in capsys.readouterr().err
