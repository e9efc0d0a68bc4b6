"""What the mini world's students learn: examples that a teacher makes by the factories.

The teacher is the model that was taught all formats from many gold examples; a student, the same base model with
few of these, is fine-tuned on what the teacher makes of training questions.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from data_synth import compound, factories, hanrag
from data_synth.miniworld import spaced
from data_synth.recipes import DualRAGRecipe, HANRAGRecipe, PlanRAGRecipe, RouteSizes, TeacherRecipe
from data_synth.records import task_record
from rag_train.formats import hanrag as revelator
from rag_train.schema import Question, SFTRecord

if TYPE_CHECKING:
    from eval.miniature import Miniature

Student = Literal["dualrag", "hanrag", "planrag", "examiner"]
"""By what they were fine-tuned on: DualRAG's examples; HANRAG's, for its Revelator; PlanRAG's, for its planner.
``examiner`` learns from gold annotations what the teacher was never shown, writing and combining questions."""

REVELATOR_TASKS = {
    task.name
    for task in (revelator.ROUTE, revelator.DECOMPOSE, revelator.REFINE, revelator.RELEVANT, revelator.ENDING)
}


def start(name: str) -> str:
    """The model that is fine-tuned."""
    return "taught" if name == "examiner" else "student"


async def examples(mini: Miniature, name: str) -> list[SFTRecord]:
    """What a `Student` is fine-tuned on."""
    if name == "examiner":
        records = _asking(mini)
    else:
        records = await by_teacher(mini, name)
    if name == "hanrag":
        records = [record for record in records if record.task in REVELATOR_TASKS]
    return [spaced(record) for record in records]


def teacher_file(mini: Miniature, method: str) -> Path:
    """Where the teacher's examples are; the counts are in the file beside it."""
    return mini.folder / f"{method}-teacher.jsonl"


async def by_teacher(mini: Miniature, method: str) -> list[SFTRecord]:
    """The factory's records, by the teacher; resumed if it was interrupted."""
    output = teacher_file(mini, method)
    if not output.exists():
        recipe = _recipe(mini, method, await mini.model("taught"), output)
        questions = hanrag.items(recipe) if isinstance(recipe, HANRAGRecipe) else _training(mini)
        async with mini.serve(Path(recipe.model or "")) as engine:
            settings = {"corpus_sha256": mini.index.corpus_sha256}
            teacher = mini.kit(engine)
            await factories.synthesize_with(method, recipe, questions, mini.retriever, teacher, settings)
    return [SFTRecord.model_validate_json(line) for line in output.read_text(encoding="utf-8").splitlines()]


def _recipe(mini: Miniature, method: str, teacher: Path, output: Path) -> TeacherRecipe:
    held_out = [
        _write(mini, split, [*mini.world.questions(split), *mini.world.compounds(split, 400)])
        for split in ("dev", "test")
    ]
    common: dict[str, Any] = {
        "index": "",
        "questions": [_write(mini, "train", _training(mini))],
        "model": str(teacher),
        "output": str(output),
        "passages": 3,
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
            sizes = RouteSizes(**dict.fromkeys(kinds, mini.settings.taught // 2))
            compounds = [_write(mini, "train-compound", _compounds(mini))]
            return HANRAGRecipe(compound=compounds, routes=sizes, **common)


def _training(mini: Miniature) -> list[Question]:
    return [q for q in mini.world.questions("train") if (q.hops or 0) > 1][: mini.settings.taught]


def _compounds(mini: Miniature) -> list[Question]:
    return mini.world.compounds("train", mini.settings.taught // 2)


def _write(mini: Miniature, name: str, questions: Iterable[Question]) -> Path:
    mini.folder.mkdir(parents=True, exist_ok=True)
    path = mini.folder / f"{name}-questions.jsonl"
    path.write_text("".join(f"{question.model_dump_json()}\n" for question in questions), encoding="utf-8")
    return path


def _asking(mini: Miniature) -> list[SFTRecord]:
    """The compound benchmark's two tasks on training entities, from the world's facts."""
    records = []
    for question in _compounds(mini):
        name = question.decomposition[0].entity
        passage = mini.world.passage(name)
        for step in question.decomposition:
            if step.short in passage.text:
                pair = compound.Pair(Question=step.subquery, Answer=step.short)
                records.append((compound.ASK, compound.ask_fields(name, passage), pair))
        parts = [step.subquery for step in question.decomposition]
        records.append((compound.COMBINE, compound.combine_fields(parts), question.question))
        records.append((compound.COMBINE, compound.combine_fields([parts[0], parts[0]]), "no"))
    return [
        task_record(task, fields, answer, id=str(i), source="gold", instructions=False)
        for i, (task, fields, answer) in enumerate(records)
    ]
