"""What a strategy needs of its engine is checked before the first question, with its settings."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.fakes import Found, Says
from support.hostile import ASKED, HostileModel, HostileRetriever

from rag_train.errors import UserError
from rag_train.formats.deeprag import SEARCH
from rag_train.llm.base import Abilities, Completion, Sampling
from rag_train.schema import Passage
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import STRATEGIES, build, listing

EVERYTHING = Abilities(attention=True)
REFUSED = {
    "logprobs": ["flare", "plan-selfrag", "rankrag", "rq-rag", "self-rag"],
    "continues": ["plan-selfrag", "rq-rag", "self-rag"],
    "attention": ["dragin"],
    "guided": [],
}
"""Strategies that do without no more than the ability, at their default settings."""


class Limited(HostileModel):
    """An obedient engine with the given abilities; it records whether a call asked for log-probabilities."""

    def __init__(self, abilities: Abilities):
        super().__init__("obedient", 0)
        self.abilities, self.scored = abilities, False

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        self.scored |= sampling.logprobs > 0
        got = await super().complete(prompt, sampling)
        return got if self.abilities.logprobs else replace(got, logprobs=())


def kit(llm: Any, **more: Any) -> Kit:
    retriever: Any = HostileRetriever("everything")
    kinds = dict.fromkeys(("sparse", "dense", "web"), retriever)
    return Kit(llm, retriever, instructions=False, retrievers=kinds, **more)


@pytest.mark.parametrize("ability", REFUSED)
def test_strategies_are_refused_without_what_they_need(ability: str):
    opened = kit(Limited(replace(EVERYTHING, **{ability: False})))
    refused = []
    for name in STRATEGIES:
        try:
            build(name, opened)
        except UserError as error:
            assert str(error).startswith(f"--strategy {name}: needs ") and "; use --engine " in str(error)
            refused.append(name)
    assert sorted(refused) == REFUSED[ability]


@pytest.mark.parametrize(
    ("spec", "lacking", "remedy"),
    [
        ("deeprag,threshold=0.3", "logprobs", "needs log-probabilities, which hostile does .*, or threshold=0.5"),
        ("planrag,solver=selfrag", "logprobs", "needs log-probabilities, .*, or solver=generator"),
    ],
)
def test_settings_decide_what_is_needed(spec: str, lacking: str, remedy: str):
    with pytest.raises(UserError, match=f"--strategy {spec}: {remedy}"):
        build(spec, kit(Limited(replace(EVERYTHING, **{lacking: False}))))


@pytest.mark.parametrize("spec", ["deeprag-retrieve,threshold=0.3", "deeprag-parametric,threshold=0.3"])
def test_forced_decisions_need_no_probabilities(spec: str):
    assert build(spec, kit(Limited(replace(EVERYTHING, logprobs=False))))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - set(REFUSED["logprobs"]) - {"deeprag", "dragin"}))
def test_no_other_strategy_reads_log_probabilities(name: str):
    llm = Limited(replace(EVERYTHING, logprobs=False))
    asyncio.run(build(name, kit(llm)).answer(ASKED))
    assert not llm.scored


def test_deeprag_follows_its_own_decisions_without_log_probabilities():
    class Decides(Says):
        abilities = Abilities(logprobs=False)

        async def complete(self, prompt: str, sampling: Sampling) -> Completion:
            if prompt.endswith("Intermediate answer:"):
                return await super().complete(prompt, sampling)
            return replace(await Says("Follow up: Who?\n").complete(prompt, sampling), stop=SEARCH, logprobs=())

    found = Found([Passage(id="1", text="Ada.")])
    said = " Ada\nSo the final answer is: Ada\n"
    trajectory = asyncio.run(build("deeprag", Kit(Decides(said), found, instructions=False)).answer(ASKED))
    assert trajectory.answer == "Ada" and found.queries == ["Who?"]


def test_a_role_needs_only_what_its_calls_read():
    plain = Limited(Abilities(logprobs=False, continues=False, guided=False))
    assert build("plan-selfrag", kit(Limited(EVERYTHING), models={"planner": plain}))
    assert build("rankrag", kit(Limited(EVERYTHING), models={"reader": plain}))
    with pytest.raises(UserError, match="needs log-probabilities"):
        build("rankrag", kit(plain, models={"reader": Limited(EVERYTHING)}))


def test_the_listing_says_what_is_needed():
    needs = {entry["name"]: entry["needs"] for entry in listing()}
    assert needs["flare"] == needs["rankrag"] == ["log-probabilities"]
    assert needs["dragin"] == ["attention weights"]
    assert "log-probabilities" in needs["plan-selfrag"] and "log-probabilities" not in needs["planrag"]
    assert needs["deeprag"] == ["a Stage I or Stage II checkpoint"]


def test_ranking_without_a_verdict_is_noted():
    trajectory = asyncio.run(build("rankrag", kit(Says(" maybe"))).answer(ASKED))
    assert trajectory.unparsed and "neither True nor False" in trajectory.notes["rankrag"]


def test_every_call_has_the_strategys_limit_of_tokens():
    class Records(HostileModel):
        async def complete(self, prompt: str, sampling: Sampling) -> Completion:
            limits.append(sampling.max_tokens)
            return await super().complete(prompt, sampling)

    for name in STRATEGIES:
        limits: list[int] = []
        asyncio.run(build(f"{name},max_tokens=77", kit(Records("obedient", 1))).answer(ASKED))
        assert limits and set(limits) <= {77, 1}
