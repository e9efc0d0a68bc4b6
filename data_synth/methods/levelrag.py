"""Examples of LevelRAG's actions from gold annotations.

The paper trains no model, but small models cannot run the actions untrained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rag_train.data_synth.method import method
from rag_train.data_synth.methods.dualrag import rounds
from rag_train.data_synth.modules.examples import (
    Examples,
    found_or_known,
    gold_outcome,
    retrieved,
    says,
    subjects_known,
)
from rag_train.data_synth.modules.method import GoldRecipe, ModuleMethod
from rag_train.formats import levelrag
from rag_train.formats.instructions import OURS, Given
from rag_train.jobs.items import Outcome
from rag_train.questions.hops import fold, mentions
from rag_train.schema import GoldStep, Passage, Question, SFTRecord


def gold_records(
    question: Question, passages_by_query: Mapping[str, list[Passage]], *, instructions: Given = OURS
) -> list[SFTRecord]:
    """Make examples of the high-level and low-level actions.

    ``passages_by_query`` has the passages of each hop's subquery. Returns no examples if an annotated hop has no
    entity.
    """
    steps = question.decomposition
    if not steps or not subjects_known(question):
        return []
    out = Examples(question, instructions)
    known: list[tuple[str, str]] = []
    order = rounds(question)
    for n, hops in enumerate(order):
        queries = [steps[i].subquery for i in hops]
        if n == 0:
            out.add(levelrag.DECOMPOSE, levelrag.question_fields(question.question), queries, "0")
        else:
            out.add(levelrag.SUPPLEMENT, levelrag.question_fields(question.question, known), queries, str(n))
        known += [(steps[i].subquery, steps[i].answer) for i in hops]
        fields = levelrag.question_fields(question.question, known)
        out.add(levelrag.VERIFY, fields, "yes" if n + 1 == len(order) else "no", str(n))
    out.add(levelrag.ANSWER, levelrag.question_fields(question.question, known), question.answers[0], "end")
    for i, step in enumerate(steps):
        passages = passages_by_query[step.subquery]
        answered = says(passages, step.short)
        if source := found_or_known(passages, step):
            fields = levelrag.reading_fields(step.subquery, passages)
            out.add(levelrag.SUMMARIZE, fields, step.answer, str(i), source)
        words = [step.entity, _keyword(step)]
        out.add(levelrag.REWRITE, levelrag.reading_fields(step.subquery, []), words, str(i))
        fields = levelrag.reading_fields(step.subquery, passages)
        out.add(levelrag.SUFFICIENT, fields, "yes" if answered else "no", str(i))
        if not answered and passages:
            feedback = levelrag.feedback_fields(step.subquery, levelrag.keywords(words), passages)
            out.add(levelrag.EXTEND, feedback, step.subquery.rstrip("?").rpartition(" ")[2], str(i))
            other = next((p.title for p in passages if step.entity not in p.title), passages[-1].title)
            out.add(levelrag.FILTER, feedback, other, str(i))
            out.add(levelrag.EMPHASIZE, feedback, step.entity, str(i))
        if not answered and step.known:  # a pseudo passage is written from memory: the first without passages
            out.add(levelrag.PSEUDO, levelrag.reading_fields(step.subquery, []), step.answer, str(i), "memory")
            if passages:
                out.add(levelrag.PSEUDO, fields, step.answer, f"{i}/later", "memory")
    return out


def _keyword(step: GoldStep) -> str:
    """Return the longest word of the hop's subquery that is not in its entity."""
    words = [word for word in fold(step.subquery).split() if not mentions(step.entity, word)]
    return max(words, key=len, default=step.entity)


@method("levelrag")
class LevelRAGData(ModuleMethod[GoldRecipe]):
    """LevelRAG: examples of its modules, from gold annotations."""

    recipe_type: ClassVar = GoldRecipe
    starts: ClassVar = ("gold",)
    gold_records: ClassVar = staticmethod(gold_records)

    async def outcome(self, question: Question, /) -> Outcome:
        passages_by_query = await retrieved(self.retriever, question, self.recipe.passages)
        records = gold_records(question, passages_by_query, instructions=self.recipe.given)
        return gold_outcome(
            question, records, "not usable" if subjects_known(question) else "hop without a subject"
        )
