"""Rows of each released question file with the questions read from them, and compound questions."""

from __future__ import annotations

import json
import random
from typing import Any

import yaml
from support.paths import ROOT

from rag_train.schema import Question
from rag_train.worlds.mini.world import World

_CASES = yaml.safe_load((ROOT / "tests/cases/questions.yaml").read_text(encoding="utf-8"))
SHAPES: dict[str, tuple[dict[str, Any], Question]] = {
    kind: (case["row"], Question.model_validate(case["question"])) for kind, case in _CASES.items()
}
ROW = json.dumps(SHAPES["flashrag"][0])


def compounds(world: World, split: str, count: int) -> list[Question]:
    """Return questions for two or three facts about a film or person each (HANRAG, appendix B.1)."""
    rng, found = random.Random(split), []
    for subject in rng.choices([name for name, its in world.split.items() if its == split], k=count):
        relations = rng.sample(world.relations_of(world.type_of(subject)), rng.choice((2, 3)))
        steps = [step for relation in relations for step in world.follow(subject, (relation,))]
        text = ", and ".join(step.subquery.rstrip("?") for step in steps) + "?"
        id, answer = f"{split}-compound-{len(found)}", " && ".join(step.short for step in steps)
        question = world._question(text, answer, steps, "compound", [subject])
        found.append(question.model_copy(update={"id": id}))
    return found
