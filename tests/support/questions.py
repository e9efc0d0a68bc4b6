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
    """Return questions that ask for 2 or 3 facts about a film or person (HANRAG, appendix B.1)."""
    rng = random.Random(f"{world.config.seed}-{split}-compound")
    subjects = [name for name, its_split in world.split.items() if its_split == split]
    found: dict[str, Question] = {}
    while len(found) < count:
        subject = rng.choice(subjects)
        relations = rng.sample(world.relations_of(world.type_of(subject)), rng.choice((2, 3)))
        steps = [step for relation in relations for step in world.follow(subject, (relation,))]
        first, *rest = (step.subquery.rstrip("?") for step in steps)
        text = ", and ".join([first, *(part[0].lower() + part[1:] for part in rest)]) + "?"
        answer = " && ".join(step.short for step in steps)
        found.setdefault(text, world._question(text, answer, steps, "compound", [subject]))
    return [q.model_copy(update={"id": f"{split}-compound-{i}"}) for i, q in enumerate(found.values())]
