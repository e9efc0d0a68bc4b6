"""Synthesis of module examples from the command line."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import call
from support.fakes import Found
from support.paths import ROOT
from support.servers import Handler, serving
from support.synthesis import HELD_OUT, write

from rag_train.data_synth.inputs import check_unique_ids, read_questions
from rag_train.data_synth.method import synthesize
from rag_train.data_synth.methods.planrag import PlanRAGData
from rag_train.data_synth.modules.method import TeacherRecipe
from rag_train.errors import PromptTooLong, UserError
from rag_train.jobs.items import Outcome, Summary
from rag_train.schema import Question
from rag_train.worlds.mini.world import World, write_world


@pytest.mark.slow
def test_gold_recipe_writes_examples_of_every_method_once(world: World, tmp_path: Path, capsys):
    write_world(world, tmp_path)
    assert call("index", str(tmp_path / "corpus.jsonl"), str(tmp_path / "index")) == 0
    capsys.readouterr()
    keys = [f"questions=[{tmp_path}/dev.jsonl]", "held_out=[]", f"index={tmp_path}/index", "sample=20"]
    for method in ("planrag", "hanrag", "dualrag", "levelrag"):
        command = ["synth", method, str(ROOT / "recipes/gold.yaml"), *keys, f"output={tmp_path}/{method}.jsonl"]
        assert call(*command, "--json") == 0
        first = json.loads(capsys.readouterr().out)
        assert first["items"] == 20
        modules = {name: n for name, n in first["counts"].items() if not name.startswith("depth")}
        assert first["records"] == sum(modules.values()) > 20
        assert call(*command, "--json") == 0
        second = json.loads(capsys.readouterr().out)
        assert second["items_done"] == 0 and second["records"] == first["records"]


def test_rejects_duplicate_ids():
    questions = [Question(id=id, question="Who?", answers=["a"]) for id in ("q0", "q1", "q0")]
    with pytest.raises(UserError, match="id 'q0' occurs more than once; give each question its own id"):
        check_unique_ids(questions)
    check_unique_ids(questions[:2])


def test_ids_that_occur_in_several_files_get_the_name_of_their_file(tmp_path: Path):
    """FlashRAG's released files all begin with test_0."""
    files = [
        write(tmp_path / name / "test.jsonl", [Question(id=id, question="Who?", answers=["a"]) for id in ids])
        for name, ids in (("nq", ("test_0", "n")), ("popqa", ("test_0", "p")))
    ]
    questions = read_questions(files, None, 0)
    assert [q.id for q in questions] == ["nq/test.jsonl:test_0", "n", "popqa/test.jsonl:test_0", "p"]
    check_unique_ids(questions)
    with pytest.raises(UserError, match="the file is given twice"):
        read_questions([files[0], files[0]], None, 0)


def made(output: Path, outcome) -> Summary:
    questions = [Question(id=f"q{i}", question=f"Who is {i}?", answers=["a"]) for i in range(3)]
    method = PlanRAGData(TeacherRecipe(questions=[], index="", output=str(output)), questions, Found([]))
    method.outcome = outcome
    return asyncio.run(method.write())


def test_only_unfit_content_is_rejected(tmp_path: Path):
    """Every ValueError, pydantic's and those of mistakes in the code, was rejected as too long."""

    async def unfit(question: Question, *_) -> Outcome:
        if question.id == "q0":
            raise PromptTooLong("5,000 tokens")
        Question(id=question.id, question="", answers=[])
        raise AssertionError

    assert made(tmp_path / "a.jsonl", unfit).rejected == {"too long": 1, "invalid": 2}

    async def mistake(question: Question, *_) -> Outcome:
        raise ValueError("a mistake in the code")

    with pytest.raises(ValueError, match="a mistake in the code"):
        made(tmp_path / "b.jsonl", mistake)


class Service(Handler):
    """A retrieval service that states ``identity``, and finds nothing."""

    identity = ""

    def do_GET(self) -> None:
        health = {"retriever": "bm25", "max_queries": 8, "identity": self.identity}
        self.send(200, json.dumps(health).encode())

    def do_POST(self) -> None:
        queries = json.loads(self.body())["queries"]
        self.send(200, json.dumps({"passages": [[] for _ in queries]}).encode())


@pytest.mark.parametrize("changed", ["nothing", "retriever", "held_out", "prompt"])
def test_records_follow_all_that_they_depend_on(tmp_path: Path, changed: str) -> None:
    """Half of a file could come from one retriever, set of held-out questions or prompt, and half from another."""
    questions = write(tmp_path / "q.jsonl", [HELD_OUT])
    held_out = write(tmp_path / "held.jsonl", [HELD_OUT.model_copy(update={"question": "Who?"})])
    Service.identity = "a"
    with serving(Service) as url:
        recipe = TeacherRecipe(
            questions=[questions], index=url, output=str(tmp_path / "out.jsonl"), held_out=[held_out]
        )
        first = asyncio.run(synthesize(PlanRAGData, recipe))
        match changed:
            case "retriever":
                Service.identity = "b"
            case "held_out":
                write(held_out, [HELD_OUT])
            case "prompt":
                (tmp_path / "own").mkdir()
                (tmp_path / "own/planrag_plan.txt").write_text("Another instruction.")
                recipe = replace(recipe, prompts=tmp_path / "own")
            case _:
                again = asyncio.run(synthesize(PlanRAGData, recipe))
                assert again.records == first.records > 0
                return
        with pytest.raises(UserError, match="already exists and was made with a different recipe; delete it or"):
            asyncio.run(synthesize(PlanRAGData, recipe))
