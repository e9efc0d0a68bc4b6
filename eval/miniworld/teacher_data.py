"""What a teacher's data is worth: students before and after fine-tuning on it, compared with their teacher."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rag_train.data_synth import compound
from rag_train.data_synth.modules import hanrag
from rag_train.data_synth.modules.examples import retrieved
from rag_train.eval.demo.claims import MARGIN, PairedClaim
from rag_train.eval.metrics.intervals import across_seeds
from rag_train.eval.metrics.modules import ModuleScore, validate
from rag_train.eval.metrics.scores import Score, score
from rag_train.eval.miniworld.answers import Request, ask
from rag_train.eval.miniworld.lab import Lab, Settings
from rag_train.eval.miniworld.lessons import spaced
from rag_train.eval.miniworld.models import checkpoint
from rag_train.eval.miniworld.students import REVELATOR_TASKS, teacher_file
from rag_train.files import read_records, write_records
from rag_train.miniworld.world import subquery
from rag_train.progress import console
from rag_train.provenance import save_result
from rag_train.schema import Question, SFTRecord
from rag_train.strategies.dualrag import IDENTIFIER, REASONER, SUMMARIZER
from rag_train.strategies.hanrag import ROLE as REVELATOR

MULTI_HOP, COMPOUND = "multi-hop", "compound"
RUNS: dict[str, Request] = {
    "dualrag, teacher": Request("taught", "dualrag", MULTI_HOP),
    "dualrag, student": Request("student", "dualrag", MULTI_HOP),
    "dualrag, fine-tuned": Request("dualrag", "dualrag", MULTI_HOP),
    "dualrag, without reasoner": Request("dualrag", "dualrag", MULTI_HOP, (REASONER, "student")),
    "dualrag, without identifier": Request("dualrag", "dualrag", MULTI_HOP, (IDENTIFIER, "student")),
    "dualrag, without summarizer": Request("dualrag", "dualrag", MULTI_HOP, (SUMMARIZER, "student")),
    "adaptive-rag, compound": Request("taught", "adaptive-rag", COMPOUND),
    "hanrag, teacher": Request("taught", "hanrag", MULTI_HOP),
    "hanrag, student": Request("taught", "hanrag", MULTI_HOP, (REVELATOR, "student")),
    "hanrag, fine-tuned": Request("taught", "hanrag", MULTI_HOP, (REVELATOR, "hanrag")),
    "hanrag, teacher, compound": Request("taught", "hanrag", COMPOUND),
    "hanrag, student, compound": Request("taught", "hanrag", COMPOUND, (REVELATOR, "student")),
    "hanrag, fine-tuned, compound": Request("taught", "hanrag", COMPOUND, (REVELATOR, "hanrag")),
    "planrag, teacher": Request("taught", "planrag", MULTI_HOP),
    "planrag, student": Request("taught", "planrag", MULTI_HOP, ("planner", "student")),
    "planrag, fine-tuned": Request("taught", "planrag", MULTI_HOP, ("planner", "planrag")),
}
"""The runs by name."""


class Seed:
    """One seed: its questions, the scores of its runs, and the counts of its synthesized data."""

    def __init__(self, number: int, settings: Settings):
        self.number = number
        self.lab = Lab(number, settings)
        n = settings.questions
        self.questions = {
            MULTI_HOP: self.lab.multi_hop(settings.split)[:n],
            COMPOUND: self.lab.world.compounds(settings.split, n),
        }
        self.counts: dict[str, Any] = {}
        self.scores: dict[str, list[Score]] = {}
        self.revelators: dict[str, list[ModuleScore]] = {}

    async def run(self) -> None:
        """Train the models, answer the questions, validate the Revelators, and build the compound benchmark."""
        answers = await ask(self.lab, {request: self.questions[request.questions] for request in RUNS.values()})
        for name, request in RUNS.items():
            self.scores[name] = score(self.questions[request.questions], answers[request])
        await self._validate_revelators()
        for method in ("dualrag", "hanrag", "planrag"):
            self.counts[method] = _counts(teacher_file(self.lab, method))
        self.counts["compound"] = await self._build_compound_benchmark()

    async def _validate_revelators(self) -> None:
        settings = self.lab.settings
        gold: list[SFTRecord] = []
        for question in [*self.questions[MULTI_HOP][:100], *self.questions[COMPOUND][:50]]:
            found = await retrieved(self.lab.retriever, question, 3)
            records = hanrag.gold_records(question, found, instructions=False)
            gold += [spaced(record) for record in records if record.task in REVELATOR_TASKS]
        for name in ("taught", "student", "hanrag"):
            kept = self.lab.folder / "revelators" / f"{name}-{settings.split}-{settings.questions}.jsonl"
            if not kept.exists():
                async with self.lab.serve(await checkpoint(self.lab, name)) as engine:
                    write_records(kept, await validate(engine, gold))
            self.revelators[name] = read_records(kept, ModuleScore)

    async def _build_compound_benchmark(self) -> dict[str, Any]:
        """Return the counts of the compound benchmark that the examiner builds, and how many parts are true."""
        output = self.lab.folder / "compound.jsonl"
        if not output.exists():
            model = await checkpoint(self.lab, "examiner")
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
            drawn = compound.entities(self.lab.index.passages, recipe)
            async with self.lab.serve(model) as engine:
                settings = {"corpus_sha256": self.lab.index.corpus_sha256}
                await compound.synthesize_with(recipe, drawn, self.lab.kit(engine), settings)
        facts = {
            (subquery(relation, subject), value) for (subject, relation), value in self.lab.world.facts.items()
        }
        parts = [step for question in read_records(output, Question) for step in question.decomposition]
        true = sum((step.subquery, step.short) in facts for step in parts)
        return _counts(output) | {"parts": len(parts), "parts that are true": true}


def _counts(output: Path) -> dict[str, Any]:
    """Return the counts in the ``.meta.json`` file of a synthesis output."""
    meta = json.loads(output.with_name(f"{output.name}.meta.json").read_text(encoding="utf-8"))
    return {key: meta[key] for key in ("items", "records", "counts", "rejected")}


def claims(rows: Sequence[Mapping[str, Any]]) -> list[PairedClaim]:
    """Return the papers' claims about fine-tuned modules, decided by the interval over the seeds of ``rows``."""

    def claim(text: str, first: str, second: str, measure: str, margin: float = 0.0) -> PairedClaim:
        by_seed = {(row["run"], row["seed"]): row[measure] for row in rows}
        seeds = sorted({row["seed"] for row in rows})
        difference = across_seeds([by_seed[second, seed] - by_seed[first, seed] for seed in seeds])
        return PairedClaim(text, difference, measure, margin)

    adaptive, trained, prompted = "adaptive-rag, compound", "hanrag, fine-tuned", "hanrag, student"
    within = f"to within {MARGIN:.0%}"
    return [
        claim("DualRAG-FT answers better than DualRAG", "dualrag, student", "dualrag, fine-tuned", "em"),
        *(
            claim(f"and than without {left_out}", f"dualrag, without {left_out}", "dualrag, fine-tuned", "em")
            for left_out in (REASONER, IDENTIFIER, SUMMARIZER)
        ),
        claim("The trained Revelator beats the prompted one", prompted, trained, "em"),
        claim("The same on compound questions", f"{prompted}, compound", f"{trained}, compound", "compound"),
        claim(
            "On compound questions HANRAG takes fewer steps than Adaptive-RAG",
            f"{trained}, compound",
            adaptive,
            "rounds",
        ),
        claim(f"and is no less accurate, {within}", adaptive, f"{trained}, compound", "compound", MARGIN),
        claim("The fine-tuned planner beats the prompted one", "planrag, student", "planrag, fine-tuned", "em"),
        claim(f"and is as good as its teacher, {within}", "planrag, teacher", "planrag, fine-tuned", "em", MARGIN),
    ]


async def run(numbers: Sequence[int], settings: Settings, output: Path) -> None:
    """Run every seed, print the claims and rows, and write ``teacher_data.json`` to ``output``."""
    seeds = [Seed(number, settings) for number in numbers]
    for seed in seeds:
        await seed.run()
    rows = [
        {
            "seed": seed.number,
            "run": name,
            "n": len(scores),
            "em": sum(s.em for s in scores) / len(scores),
            "compound": sum(s.compound or 0 for s in scores) / len(scores) if name.endswith("compound") else None,
            "rounds": sum(s.rounds for s in scores) / len(scores),
            "retrievals": sum(s.retrievals for s in scores) / len(scores),
        }
        for seed in seeds
        for name, scores in seed.scores.items()
    ]
    decided = claims(rows)
    for claim in decided:
        console.print(claim.line())
    for row in rows:
        console.print(json.dumps(row))
    result = {
        "options": {"seeds": ",".join(map(str, numbers)), "split": settings.split, "questions": settings.questions},
        "settings": settings.recorded(),
        "claims": [
            {
                "text": claim.text,
                "held": claim.held,
                "metric": claim.unit,
                "least": 0.0 - claim.margin,
                "difference": claim.difference.model_dump(),
            }
            for claim in decided
        ],
        "rows": rows,
        "data": {seed.number: seed.counts for seed in seeds},
        "revelators": {
            seed.number: {
                model: [score.model_dump() for score in scores] for model, scores in seed.revelators.items()
            }
            for seed in seeds
        },
    }
    save_result(output / "teacher_data.json", result)
