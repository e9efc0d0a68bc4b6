"""The stages of DeepRAG's data: which questions each takes, and which it leaves for evaluation."""

import re
import shlex
from pathlib import Path

import pytest
from support.paths import ROOT
from support.synthesis import write

from rag_train.data_synth.inputs import read_questions
from rag_train.data_synth.methods.deeprag import DeepRAGRecipe
from rag_train.errors import UserError
from rag_train.recipe import load_recipe
from rag_train.schema import Question

RECIPE = ROOT / "recipes/deeprag_synth.yaml"


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    asked = [Question(id=f"q{i}", question=f"Who is {i}?", answers=["a"]) for i in range(7500)]
    return write(tmp_path_factory.mktemp("questions") / "q.jsonl", asked)


@pytest.mark.slow
def test_no_question_is_in_two_stages(questions: Path):
    """Seeds 0 and 1 shared 83 of 2,000 questions. The commands are those of the recipe's comments."""
    text = re.sub(r"(?m)^# ?", "", RECIPE.read_text(encoding="utf-8")).replace("\\\n", " ")
    drawn: dict[str, set[str]] = {}
    for command in re.findall(r"(?m)^ *(rag-train synth deeprag recipes/.*)$", text):
        overrides = [*shlex.split(command, comments=True)[4:], f"questions=[{questions}]", "held_out=[]"]
        recipe = load_recipe(DeepRAGRecipe, RECIPE, overrides)
        asked = read_questions(recipe.questions, recipe.sample, recipe.seed, recipe.earlier)
        drawn[recipe.stage] = {question.id for question in asked}
        assert len(drawn[recipe.stage]) == recipe.sample
    assert {"sft", "pairs"} <= drawn.keys()
    assert sum(map(len, drawn.values())) == len(set().union(*drawn.values()))


@pytest.mark.slow
def test_earlier_samples_are_left_out_until_no_question_is_left(questions: Path):
    rest = [q.id for q in read_questions([questions], None, 3, [7000, 400])]
    assert len(rest) == 100
    taken = {q.id for q in read_questions([questions], 7000, 3)}
    assert taken.isdisjoint(rest)
    with pytest.raises(UserError, match=r"q.jsonl: no question is left after the samples 7000, 500; draw smaller"):
        read_questions([questions], 10, 3, [7000, 500])
