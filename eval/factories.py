"""What the factories' data is worth in the mini world: students before and after, beside their teacher."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from data_synth import compound, hanrag
from data_synth.miniworld import spaced
from data_synth.records import retrieved
from eval.metrics import Interval, Metric, Score, paired_bootstrap, score
from eval.miniature import Miniature, Settings
from eval.modules import ModuleScore, validate
from eval.run import evaluate
from eval.students import REVELATOR_TASKS, teacher_file
from rag_train.files import write_text
from rag_train.miniworld.world import subquery
from rag_train.schema import Question, SFTRecord, Trajectory
from rag_train.strategies.dualrag import IDENTIFIER, REASONER, SUMMARIZER
from rag_train.strategies.hanrag import ROLE as REVELATOR

MARGIN = 0.02
RUNS: dict[str, tuple[str, str, tuple[str, str] | None]] = {
    "dualrag, teacher": ("dualrag", "taught", None),
    "dualrag, student": ("dualrag", "student", None),
    "dualrag, fine-tuned": ("dualrag", "dualrag", None),
    "dualrag, without reasoner": ("dualrag", "dualrag", (REASONER, "student")),
    "dualrag, without identifier": ("dualrag", "dualrag", (IDENTIFIER, "student")),
    "dualrag, without summarizer": ("dualrag", "dualrag", (SUMMARIZER, "student")),
    "adaptive-rag, compound": ("adaptive-rag", "taught", None),
    "hanrag, teacher": ("hanrag", "taught", None),
    "hanrag, student": ("hanrag", "taught", (REVELATOR, "student")),
    "hanrag, fine-tuned": ("hanrag", "taught", (REVELATOR, "hanrag")),
    "hanrag, teacher, compound": ("hanrag", "taught", None),
    "hanrag, student, compound": ("hanrag", "taught", (REVELATOR, "student")),
    "hanrag, fine-tuned, compound": ("hanrag", "taught", (REVELATOR, "hanrag")),
    "planrag, teacher": ("planrag", "taught", None),
    "planrag, student": ("planrag", "taught", ("planner", "student")),
    "planrag, fine-tuned": ("planrag", "taught", ("planner", "planrag")),
}
"""Strategy, model, and the role that another model has. ``compound``: asked such questions."""


class Seed:
    """One world with its models, their answers, and what was counted."""

    def __init__(self, number: int, settings: Settings):
        self.number = number
        self.mini = Miniature(number, settings)
        world, split, n = self.mini.world, settings.split, settings.questions
        self.asked = [q for q in world.questions(split) if (q.hops or 0) > 1][:n]
        self.compounds = world.compounds(split, n)
        self.work = self.mini.folder / "factories" / f"{split}-{n}"
        self.counts: dict[str, Any] = {}
        self.runs: dict[str, list[Score]] = {}
        self.revelators: dict[str, list[ModuleScore]] = {}

    async def run(self) -> None:
        """Train what is not there, answer, validate the Revelators, and build the compound benchmark."""
        for name in RUNS:
            await self._answer(name)
        checks: list[SFTRecord] = []
        for question in [*self.asked[:100], *self.compounds[:50]]:
            found = await retrieved(self.mini.retriever, question, 3)
            made = hanrag.gold_records(question, found, instructions=False)
            checks += [spaced(record) for record in made if record.task in REVELATOR_TASKS]
        for name in ("taught", "student", "hanrag"):
            kept = self.work / f"revelator-{name}.json"
            if not kept.exists():
                async with self.mini.serve(await self.mini.model(name)) as engine:
                    found = await validate(engine, checks)
                write_text(kept, json.dumps([one.model_dump() for one in found]))
            written = json.loads(kept.read_text(encoding="utf-8"))
            self.revelators[name] = [ModuleScore.model_validate(one) for one in written]
        for method in ("dualrag", "hanrag", "planrag"):
            self.counts[method] = _counted(teacher_file(self.mini, method))
        self.counts["compound"] = await self._examine()

    async def _answer(self, name: str) -> None:
        output = self.work / f"{name.replace(', ', '-').replace(' ', '-')}.jsonl"
        questions = self.compounds if name.endswith("compound") else self.asked
        if not output.exists():
            strategy, model, other = RUNS[name]
            directory = await self.mini.model(model)
            roles = {other[0]: await self.mini.model(other[1])} if other else {}
            settings = {"model": str(directory), "roles": {role: str(path) for role, path in roles.items()}}
            async with AsyncExitStack() as stack:
                engine = await stack.enter_async_context(self.mini.serve(directory))
                models = {r: await stack.enter_async_context(self.mini.serve(path)) for r, path in roles.items()}
                await evaluate(strategy, self.mini.kit(engine, models), questions, output, settings)
        lines = output.read_text(encoding="utf-8").splitlines()
        self.runs[name] = score(questions, [Trajectory.model_validate_json(line) for line in lines])

    async def _examine(self) -> dict[str, Any]:
        """The compound benchmark, by the examiner, over the test half of the world's films and people."""
        output = self.mini.folder / "compound.jsonl"
        if not output.exists():
            model = await self.mini.model("examiner")
            recipe = compound.CompoundRecipe(
                index="",
                model=str(model),
                output=str(output),
                entities=200,
                documents=10,
                combinations=3,
                dev=0.2,
                test=0.2,
                instructions=False,
            )
            drawn = compound.entities(self.mini.index.passages, recipe)
            async with self.mini.serve(model) as engine:
                settings = {"corpus_sha256": self.mini.index.corpus_sha256}
                await compound.synthesize_with(recipe, drawn, self.mini.kit(engine), settings)
        made = [Question.model_validate_json(line) for line in output.read_text(encoding="utf-8").splitlines()]
        facts = {
            (subquery(relation, subject), value) for (subject, relation), value in self.mini.world.facts.items()
        }
        parts = [step for question in made for step in question.decomposition]
        true = sum((step.subquery, step.short) in facts for step in parts)
        return _counted(output) | {"parts": len(parts), "parts that are true": true}


def _counted(output: Path) -> dict[str, Any]:
    """What the runner wrote beside its output."""
    meta = json.loads(output.with_name(f"{output.name}.meta.json").read_text(encoding="utf-8"))
    return {key: meta[key] for key in ("items", "records", "counts", "rejected")}


def claims(seeds: Sequence[Seed]) -> list[dict[str, Any]]:
    """What the papers say should come out, decided by the 95% interval of the paired difference over the questions
    of all seeds; those about one film or person are resampled together."""

    def claim(text: str, first: str, second: str, metric: Metric, least: float = 0.0) -> dict[str, Any]:
        sets = [seed.compounds if first.endswith("compound") else seed.asked for seed in seeds]
        about = [f"{i}/{q.decomposition[0].entity}" for i, some in enumerate(sets) for q in some]
        difference: Interval = paired_bootstrap(_scores(seeds, first), _scores(seeds, second), metric, about)
        return {
            "text": text,
            "held": difference.lo > least,
            "metric": metric,
            "least": least,
            "difference": difference.model_dump(),
        }

    adaptive, trained, prompted = "adaptive-rag, compound", "hanrag, fine-tuned", "hanrag, student"
    within = f"to within {MARGIN:.0%}"
    return [
        claim("DualRAG-FT answers better than DualRAG", "dualrag, student", "dualrag, fine-tuned", "em"),
        *(
            claim(f"and than without {left_out}", f"dualrag, without {left_out}", "dualrag, fine-tuned", "em")
            for left_out in (REASONER, IDENTIFIER, SUMMARIZER)
        ),
        claim("The trained Revelator beats the prompted one", prompted, trained, "em"),
        claim("The same on compound questions", f"{prompted}, compound", f"{trained}, compound", "accuracy"),
        claim(
            "On compound questions HANRAG takes fewer steps than Adaptive-RAG",
            f"{trained}, compound",
            adaptive,
            "rounds",
        ),
        claim(f"and is no less accurate, {within}", adaptive, f"{trained}, compound", "accuracy", -MARGIN),
        claim("The fine-tuned planner beats the prompted one", "planrag, student", "planrag, fine-tuned", "em"),
        claim(f"and is as good as its teacher, {within}", "planrag, teacher", "planrag, fine-tuned", "em", -MARGIN),
    ]


def _scores(seeds: Sequence[Seed], name: str) -> list[Score]:
    return [
        one.model_copy(
            update={
                "question_id": f"{seed.number}/{one.question_id}",
                # Of compound questions: the share of what is asked for (HANRAG, section 5.2).
                "accuracy": one.accuracy if one.compound is None else one.compound,
            }
        )
        for seed in seeds
        for one in seed.runs[name]
    ]
