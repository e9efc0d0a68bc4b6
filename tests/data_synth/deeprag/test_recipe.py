"""The stages of DeepRAG's data: which questions each takes, and which it leaves for evaluation."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest
from support.fakes import Found, Says
from support.paths import ROOT
from support.synthesis import write
from support.two_hop import QUESTION

from rag_train.data_synth.inputs import read_questions
from rag_train.data_synth.methods.deeprag import DeepRAGData, DeepRAGRecipe
from rag_train.errors import UserError
from rag_train.recipe import load_recipe
from rag_train.schema import Question

RECIPE = ROOT / "recipes/deeprag_synth.yaml"


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    asked = [Question(id=f"q{i}", question=f"Who is {i}?", answers=["a"]) for i in range(7500)]
    return write(tmp_path_factory.mktemp("questions") / "q.jsonl", asked)


def shipped_overrides(page: Path) -> list[list[str]]:
    """The overrides of every `rag-train synth deeprag recipes/...` of a page or of a recipe's comments."""
    text = re.sub(r"(?m)^# ?", "", page.read_text(encoding="utf-8")).replace("\\\n", " ")
    commands = re.findall(r"(?m)^ *(rag-train synth deeprag recipes/.*)$", text)
    return [shlex.split(command, comments=True)[4:] for command in commands]


def drawn(recipe: DeepRAGRecipe) -> list[str]:
    asked = read_questions(recipe.questions, recipe.sample, recipe.seed, recipe.earlier)
    return [question.id for question in asked]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [RECIPE, ROOT / "README.md", ROOT / "docs/site/howto/own-data.md"], ids=lambda p: p.name
)
def test_no_question_is_in_two_stages(page: Path, questions: Path):
    """M3: seeds 0 and 1 shared 83 of 2,000 questions."""
    recipes = [
        load_recipe(DeepRAGRecipe, RECIPE, [*overrides, f"questions=[{questions}]", "held_out=[]"])
        for overrides in shipped_overrides(page)
    ]
    stages = {recipe.stage: drawn(recipe) for recipe in recipes}
    assert {"sft", "pairs"} <= stages.keys() and len(stages) == len(recipes)
    assert {stage: len(ids) for stage, ids in stages.items()} == {r.stage: r.sample for r in recipes}
    assert sum(map(len, stages.values())) == len(set().union(*stages.values()))


@pytest.mark.slow
def test_earlier_samples_are_left_out_until_no_question_is_left(questions: Path):
    rest = [q.id for q in read_questions([questions], None, 3, [7000, 400])]
    assert len(rest) == 100
    taken = {q.id for q in read_questions([questions], 7000, 3)}
    assert taken.isdisjoint(rest)
    with pytest.raises(UserError, match=r"q.jsonl: no question is left after the samples 7000, 500; draw smaller"):
        read_questions([questions], 10, 3, [7000, 500])


def test_questions_that_leak_held_out_ones_are_rejected(tmp_path: Path):
    """M3: DeepRAG's recipe had no held_out."""
    recipe = DeepRAGRecipe(
        stage="sft",
        questions=[],
        index="",
        model="",
        output=str(tmp_path / "sft.jsonl"),
        held_out=[write(tmp_path / "held.jsonl", [QUESTION])],
    )
    other = Question(id="other", question="Who wrote Moby Dick?", answers=["Herman Melville"])
    llm = Says(" So the final answer is: Herman Melville\n")
    work = DeepRAGData(recipe, [QUESTION, other], llm, Found([])).write()
    summary = asyncio.run(work)
    assert summary.rejected == {"held out (text)": 1} and summary.records == 1
