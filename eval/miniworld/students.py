"""The training examples of the mini world's students, which a teacher makes from training questions.

The teacher is the model that was taught all methods with large shares of examples. A student, the same base model
taught with small ones, is fine-tuned on the teacher's examples.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from rag_train.data_synth import compound
from rag_train.data_synth.modules import hanrag
from rag_train.data_synth.modules.examples import task_record
from rag_train.data_synth.modules.recipes import (
    DualRAGRecipe,
    HANRAGRecipe,
    PlanRAGRecipe,
    RouteSizes,
    TeacherRecipe,
)
from rag_train.data_synth.modules.registry import FACTORIES
from rag_train.data_synth.modules.run import synthesize_with
from rag_train.eval.miniworld.engines import Engines
from rag_train.eval.miniworld.lab import PASSAGES, Lab
from rag_train.eval.miniworld.lessons import spaced
from rag_train.files import read_records, write_records
from rag_train.formats import hanrag as revelator
from rag_train.formats.tasks import Fields, Task
from rag_train.schema import Question, SFTRecord

Student = Literal["dualrag", "hanrag", "planrag", "examiner"]
"""Names of the students, by their examples.

- dualrag: the examples of DualRAG's modules.
- hanrag: the examples of HANRAG's Revelator.
- planrag: the examples of PlanRAG's planner.
- examiner: gold examples of two tasks that the teacher was not taught, writing questions and combining them.
"""

REVELATOR_TASKS = {
    task.name
    for task in (revelator.ROUTE, revelator.DECOMPOSE, revelator.REFINE, revelator.RELEVANT, revelator.ENDING)
}


async def examples(lab: Lab, name: str, teacher: Path, engines: Engines) -> list[SFTRecord]:
    """Return the examples that a `Student` is fine-tuned on; ``teacher`` is the teacher's checkpoint directory."""
    if name == "examiner":
        records = _question_writing(lab)
    else:
        records = await _by_teacher(lab, name, teacher, engines)
    if name == "hanrag":
        records = [record for record in records if record.task in REVELATOR_TASKS]
    return [spaced(record) for record in records]


def teacher_file(lab: Lab, method: str) -> Path:
    """Return the path of the teacher's examples; their counts are in the ``.meta.json`` file next to it."""
    return lab.folder / f"{method}-teacher.jsonl"


async def _by_teacher(lab: Lab, method: str, teacher: Path, engines: Engines) -> list[SFTRecord]:
    """Return the factory's records, after completing the factory's run if necessary."""
    output = teacher_file(lab, method)
    if not output.exists():
        recipe = _recipe(lab, method, teacher, output)
        questions = (
            hanrag.routed_questions(recipe) if isinstance(recipe, HANRAGRecipe) else _training_questions(lab)
        )
        settings = {"corpus_sha256": lab.index.corpus_sha256}
        kit = lab.kit(await engines.of(teacher))
        await synthesize_with(FACTORIES[method], recipe, questions, lab.retriever, kit, settings)
    return read_records(output, SFTRecord)


def _recipe(lab: Lab, method: str, teacher: Path, output: Path) -> TeacherRecipe:
    held_out = [
        _write_questions(lab, split, [*lab.world.questions(split), *lab.world.compounds(split, 400)])
        for split in ("dev", "test")
    ]
    common: dict[str, Any] = {
        "index": "",
        "questions": [_write_questions(lab, "train", _training_questions(lab))],
        "model": str(teacher),
        "output": str(output),
        "passages": PASSAGES,
        "instructions": False,
        "held_out": held_out,
    }
    match method:
        case "dualrag":
            return DualRAGRecipe(**common)
        case "planrag":
            return PlanRAGRecipe(**common)
        case _:
            kinds = ("straightforward", "single_step", "compound", "complex")
            sizes = RouteSizes(**dict.fromkeys(kinds, lab.settings.students.questions // 2))
            compounds = [_write_questions(lab, "train-compound", _compounds(lab))]
            return HANRAGRecipe(compound=compounds, routes=sizes, **common)


def _training_questions(lab: Lab) -> list[Question]:
    return lab.multi_hop("train")[: lab.settings.students.questions]


def _compounds(lab: Lab) -> list[Question]:
    return lab.world.compounds("train", lab.settings.students.questions // 2)


def _write_questions(lab: Lab, name: str, questions: Iterable[Question]) -> Path:
    path = lab.folder / f"{name}-questions.jsonl"
    write_records(path, questions)
    return path


def _question_writing(lab: Lab) -> list[SFTRecord]:
    """Return gold examples of the compound benchmark's two tasks, made from the facts about training entities."""
    examples: list[tuple[Task, Fields, Any]] = []
    for question in _compounds(lab):
        name = question.decomposition[0].entity
        passage = lab.world.passage(name)
        for step in question.decomposition:
            if step.short in passage.text:
                pair = compound.Pair(Question=step.subquery, Answer=step.short)
                examples.append((compound.ASK, compound.ask_fields(name, passage), pair))
        parts = [step.subquery for step in question.decomposition]
        examples.append((compound.COMBINE, compound.combine_fields(parts), question.question))
        examples.append((compound.COMBINE, compound.combine_fields([parts[0], parts[0]]), "no"))
    return [
        task_record(task, fields, answer, id=str(i), source="gold", instructions=False)
        for i, (task, fields, answer) in enumerate(examples)
    ]
