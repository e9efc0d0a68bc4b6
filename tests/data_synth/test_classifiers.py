"""Labels of Adaptive-RAG's and UAR's classifiers, from the command line."""

import json
from pathlib import Path

import pytest
from support.commands import call
from support.paths import ROOT
from support.synthesis import write

from rag_train.data_synth.methods.labels import UARData, UARRecipe
from rag_train.jobs.files import read_records
from rag_train.questions.load import load_questions
from rag_train.schema import Question, SFTRecord, Trajectory
from rag_train.worlds.mini.world import World

ADAPTIVE, UAR = (str(ROOT / f"recipes/{name}_synth.yaml") for name in ("adaptive_rag", "uar"))
RUNS = ("direct", "rag", "multi")


@pytest.fixture
def keys(world: World, tmp_path: Path) -> list[str]:
    """Recipe keys of three runs over two files of questions with the same ids: of four questions, each run answers
    another one, and no run the last."""
    questions = [*world.questions("dev")[:45], *(q for q in world.questions("dev")[45:] if q.hops == 1)][:60]
    for folder, half in (("a", questions[:30]), ("b", questions[30:])):
        renamed = [question.model_copy(update={"id": f"dev_{i}"}) for i, question in enumerate(half)]
        write(tmp_path / folder / "questions.jsonl", renamed)
        for correct, name in enumerate(RUNS):
            trajectories = [
                Trajectory(
                    question_id=question.id,
                    question=question.question,
                    strategy=name,
                    answer=question.answers[0] if i % 4 == correct else "?\u2028",
                )
                for i, question in enumerate(renamed)
            ]
            write(tmp_path / folder / f"{name}.jsonl", trajectories)
    return [f"{name}=[{tmp_path}/a/{name}.jsonl,{tmp_path}/b/{name}.jsonl]" for name in ("questions", *RUNS)]


@pytest.mark.slow
def test_complexity_is_the_simplest_run_that_answers(keys: list[str], tmp_path: Path, capsys):
    assert call("synth", "adaptive-rag", ADAPTIVE, *keys, f"output={tmp_path}/a.jsonl", "--json") == 0
    labels = json.loads(capsys.readouterr().out)["counts"]
    files = [load_questions(tmp_path / folder / "questions.jsonl") for folder in ("a", "b")]
    hops = [question.hops for questions in files for i, question in enumerate(questions) if i % 4 == 3]
    assert labels == {"A": 16, "B": 16 + hops.count(1), "C": 60 - 32 - hops.count(1)}
    assert labels["C"] > 14 and labels["B"] > 16


@pytest.mark.slow
def test_a_refused_question_gives_no_label(keys: list[str], tmp_path: Path, capsys):
    """Nothing is known of what the model can answer; the question was labelled as too hard."""
    path = tmp_path / "a/direct.jsonl"
    first, *others = read_records(path, Trajectory)
    write(path, [first.model_copy(update={"answer": None, "error": "no", "refused": "content filter"}), *others])
    assert call("synth", "adaptive-rag", ADAPTIVE, *keys, f"output={tmp_path}/a.jsonl", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["rejected"] == {"direct refused (content filter)": 1} and made["records"] == 59


@pytest.mark.slow
def test_uar_recipes_can_produce_all_classes(keys: list[str], tmp_path: Path, capsys):
    sums = [Question(id=f"s{i}", question=f"What is {i} and {i}?", answers=[str(2 * i)]) for i in range(8)]
    news = [Question(id=f"n{i}", question=f"Who leads club {i} now?", answers=["x"]) for i in range(8)]
    write(tmp_path / "sums.jsonl", sums)
    write(tmp_path / "news.jsonl", news)
    more = [f"timely=[{tmp_path}/news.jsonl]", f"no_knowledge=[{tmp_path}/sums.jsonl]"]
    assert call("synth", "uar", UAR, *keys[:2], *more, f"output={tmp_path}/u.jsonl", "--json") == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert (
        counts.keys() == {f"{task.name} {label}" for task, labels in UARData.classes.items() for label in labels}
        and counts["uar_time yes"] == counts["uar_knowledge no"] == 8
    )
    asked = {r.prompt for r in read_records(tmp_path / "u.jsonl", SFTRecord) if r.id.endswith("/wish/uar_intent")}
    prefixes = {prompt.rpartition("Question: ")[2].partition(" ")[0] for prompt in asked}
    assert len(asked) == 76 and {"Please", "Look", "Can", "Search", "I"} <= prefixes


def test_a_run_is_right_by_the_rules_of_the_questions_dataset(tmp_path: Path):
    answer = Trajectory(question_id="q", question="?", strategy="s", answer="Jack-in-the-box")
    write(tmp_path / "direct.jsonl", [answer])
    for scoring, right in (("triviaqa", True), ("squad", False)):
        asked = Question(id="q", question="?", answers=["Jack in the box"], metadata={"scoring": scoring})
        write(tmp_path / "questions.jsonl", [asked])
        files = {"questions": [tmp_path / "questions.jsonl"], "direct": [tmp_path / "direct.jsonl"]}
        [question] = UARData.questions(UARRecipe(**files, output="-"))
        assert question.right == {"direct": right}


@pytest.mark.slow
def test_says_which_classes_have_no_examples(keys: list[str], tmp_path: Path, capsys):
    bare = ["timely=[]", "no_knowledge=[]"]
    assert call("synth", "uar", UAR, *keys[:2], *bare, f"output={tmp_path}/u.jsonl") == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "no examples of uar_knowledge no, uar_time yes: the classifier cannot learn it" in told


@pytest.mark.slow
def test_rejects_a_run_that_lacks_a_question_or_a_file(keys: list[str], tmp_path: Path, capsys):
    extra = Question(id="extra", question="Who?", answers=["a"])
    path = tmp_path / "b/questions.jsonl"
    write(path, [*load_questions(path), extra])
    bare = ["timely=[]", "no_knowledge=[]"]
    assert call("synth", "uar", UAR, *keys[:2], *bare, f"output={tmp_path}/u.jsonl") == 2
    assert "direct.jsonl: no trajectory of question 'extra'" in capsys.readouterr().err
    assert call("synth", "adaptive-rag", ADAPTIVE, *keys[:2], "rag=[]", "multi=[]", f"output={tmp_path}/x") == 2
    assert "rag: 0 files for 2 files of questions; give a file for each" in capsys.readouterr().err
