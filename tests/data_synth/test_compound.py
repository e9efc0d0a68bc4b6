"""HANRAG's benchmark of compound questions."""

import asyncio
import json
import re
from pathlib import Path

from support.fakes import Says

from rag_train.data_synth.methods import compound
from rag_train.jobs.files import read_records
from rag_train.schema import Passage, Question
from rag_train.strategies.base import Kit


def test_builds_checks_and_splits_compound_questions(tmp_path: Path):
    names = ["Ada\u2028", "Bob"]  # U+2028 ends a line for str.splitlines, but not in JSON Lines
    passages = [
        Passage(id=str(i), title=name, text=f"{name} number {i} says value{i}.")
        for i, name in enumerate([names[0]] * 4 + [names[1]] * 2)
    ]

    class AllPassages:
        identity = "all"

        async def search_all(self, queries: list[str], k: int) -> list[list[Passage]]:
            return [passages for _ in queries]

    def answer(prompt: str) -> str:
        if prompt.endswith("Output:\n"):
            name = re.search(r"Title: (\w+)", prompt)[1]
            number = re.search(r"number (\d)", prompt)[1]
            value = "elsewhere" if number == "3" else f"value{number}"
            return json.dumps({"Question": f"What does {name} say in {number}?", "Answer": value})
        return " no" if "Bob" in prompt else " What does Ada say" + "".join(re.findall(r"in (\d)", prompt)) + "?"

    recipe = compound.CompoundRecipe(
        index="", model="t", output=str(tmp_path / "c.jsonl"), combinations=3, dev=0.4, test=0.0, instructions=False
    )
    drawn = compound.entities([Passage(id="", title=name, text="") for name in names], recipe)
    teacher = Kit(Says(answer), AllPassages(), instructions=False)
    summary = asyncio.run(compound.CompoundData(recipe, drawn, teacher).write())
    assert summary.rejected == {"answer not in the document": 1, "cannot be combined": 1}
    split = {entity.name: entity.split for entity in drawn}
    questions = read_records(tmp_path / f"c.{split[names[0]]}.jsonl", Question)
    assert len(questions) == summary.records == 3 and not (tmp_path / "c.test.jsonl").read_text()
    for question in questions:
        assert question.type == "compound" and question.hops == len(question.decomposition) in (2, 3)
        assert question.answers == [" && ".join(step.answer for step in question.decomposition)]
        assert all(step.answer in passages[int(step.passage_ids[0])].text for step in question.decomposition)
