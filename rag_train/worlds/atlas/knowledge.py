"""What a model knows by itself: each fact is asked for in several wordings and samples, without passages.

The knowledge boundary of the atlas is measured, not built. A fact counts as known or unknown only where the answers
agree; the rest is uncertain, and no decision is judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rag_train.answers import contains
from rag_train.formats.prompting import few_shot_prompt
from rag_train.jobs.files import read_records
from rag_train.jobs.items import Outcome, cost, run
from rag_train.llm.base import LLM, Sampling
from rag_train.schema import GoldStep, LLMCall, Question, Record
from rag_train.strategies.base import together
from rag_train.worlds.atlas.facts import Atlas, share
from rag_train.worlds.atlas.questions import subquery
from rag_train.worlds.atlas.wordings import RELATIONS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLES = 1
"""Sampled answers to each wording, in addition to the greedy answer."""
TEMPERATURE = 0.7
EXAMPLES = 2
"""Worked examples in a prompt: facts of the same relation about training entities."""
KNOWN, UNKNOWN = 0.75, 0.25
"""A fact is known from this share of right answers, and unknown up to that one."""


class Fact(Record):
    """A fact to ask for. ``prompts`` ask for it in different wordings."""

    subject: str
    relation: str
    subquery: str
    answers: list[str]
    prompts: list[str]


class Knowledge(Record):
    """How often a model answered one subquery right."""

    subject: str
    relation: str
    subquery: str
    right: int
    asked: int
    greedy: str
    """The greedy answer to the first wording."""

    @property
    def known(self) -> bool | None:
        """Whether the model knows the fact; None if its answers disagree."""
        found = self.right / self.asked
        return True if found >= KNOWN else False if found <= UNKNOWN else None


def facts_of(atlas: Atlas, questions: Iterable[Question]) -> list[tuple[str, str]]:
    """The facts that the questions are about, each once, in order of first use."""
    facts = [fact for fact in atlas.facts if (atlas.entities[fact[0]].kind, fact[1]) in RELATIONS]
    by_subquery = {subquery(atlas, *fact): fact for fact in facts}
    steps = (step.subquery for question in questions for step in question.decomposition)
    return list(dict.fromkeys(by_subquery[step] for step in steps if step in by_subquery))


async def measure(atlas: Atlas, facts: Sequence[tuple[str, str]], llm: LLM, output: Path) -> list[Knowledge]:
    """Ask ``llm`` for every fact and write one `Knowledge` per line to ``output`` (resumable)."""
    items = [_fact(atlas, llm.tokenizer, subject, relation) for subject, relation in facts]

    async def ask(fact: Fact) -> Outcome:
        samplings = [Sampling(max_tokens=64, stop=("\n",))]
        # Without seeds: vLLM's CPU build dies of a seeded call whose prompt is read in two steps.
        samplings += [Sampling(max_tokens=64, stop=("\n",), temperature=TEMPERATURE)] * SAMPLES
        calls = [(prompt, sampling) for prompt in fact.prompts for sampling in samplings]
        completions = await together(llm.complete(*call) for call in calls)
        right = sum(contains(completion.whole, fact.answers) for completion in completions)
        knowledge = Knowledge(
            subject=fact.subject,
            relation=fact.relation,
            subquery=fact.subquery,
            right=right,
            asked=len(calls),
            greedy=(completions[0].whole or "").strip(),
        )
        usages = [completion.usage for completion in completions]
        return Outcome([knowledge], cost(LLMCall(module="knowledge", **asdict(usage)) for usage in usages))

    await run(items, ask, output, {"model": llm.name}, label="measuring what the model knows")
    return read_records(output, Knowledge)


def with_knowledge(questions: Iterable[Question], known: Mapping[str, bool | None]) -> list[Question]:
    """The questions with ``known`` filled in at each hop, by subquery."""

    def step(gold: GoldStep) -> GoldStep:
        return gold.model_copy(update={"known": known.get(gold.subquery)})

    return [q.model_copy(update={"decomposition": [step(gold) for gold in q.decomposition]}) for q in questions]


def _fact(atlas: Atlas, tokenizer: PreTrainedTokenizerBase, subject: str, relation: str) -> Fact:
    entity, value = atlas.entities[subject], atlas.facts[subject, relation]
    examples = _examples(atlas, subject, relation)
    wordings = RELATIONS[entity.kind, relation].questions
    return Fact(
        subject=subject,
        relation=relation,
        subquery=subquery(atlas, subject, relation),
        answers=value.answers,
        prompts=[few_shot_prompt(tokenizer, examples, wording.format(x=entity.phrase)) for wording in wordings],
    )


def _examples(atlas: Atlas, subject: str, relation: str) -> list[tuple[str, str]]:
    """Question and short answer for two training entities, the same for every fact of a relation."""
    kind = atlas.entities[subject].kind
    pool = [e.id for e in atlas.of_kind(kind, "train") if (e.id, relation) in atlas.facts and e.id != subject]
    chosen = sorted(pool, key=lambda id: share(f"example {id}"))[:EXAMPLES]
    return [(subquery(atlas, id, relation), atlas.facts[id, relation].text) for id in chosen]
