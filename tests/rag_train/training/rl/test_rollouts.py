"""Rollouts: sampled trajectories, the value of both decisions at a state, and the tokens that they cost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.fakes import Found
from support.training import TOKENIZER

from rag_train.errors import UserError
from rag_train.formats import deeprag, planrag
from rag_train.llm.base import Abilities, Completion, Sampling, TokenLogprob, Usage
from rag_train.schema import Decision, Passage, Question, Step
from rag_train.strategies.base import Kit, Run
from rag_train.strategies.deeprag import DeepRAG
from rag_train.training.recipe import RLRecipe
from rag_train.training.rl.rollouts import Branch, Rollout, Rollouts

QUESTION = Question(id="q", question="Where was he born?", answers=["Rome"])
ASK = f"{deeprag.FOLLOW_UP} Who?\n"


class Writes:
    """An engine that begins with ``first``; after a passage it knows the answer, without one it is wrong."""

    name, tokenizer, abilities = "writes", TOKENIZER, Abilities()

    def __init__(self, first: str = "", limit: int = 10**6):
        self.first, self.limit = first, limit
        self.samplings: list[Sampling] = []

    def text(self, prompt: str) -> str:
        history = prompt.partition("\n")[2]
        answer = "Rome" if deeprag.CONTEXT in history else "Oslo"
        return f" he\n{deeprag.FINAL} {answer}\n" if history else self.first

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        if len(prompt) > self.limit:
            raise ValueError("too long")
        self.samplings.append(sampling)
        text = self.text(prompt)
        stop = deeprag.SEARCH if text.endswith(deeprag.SEARCH) else None
        ids = TOKENIZER(text)["input_ids"]
        logprobs = tuple((TokenLogprob(token, "", -1.0),) for token in ids)
        return Completion(text.removesuffix(stop or ""), tuple(ids), Usage(10, len(ids)), stop, False, logprobs)

    async def aclose(self) -> None: ...


def sample(engine: Writes, n: int = 1, **keys: Any) -> tuple[list[Rollout], Found]:
    found = Found([Passage(id="p", title="T", text="He is of Rome.")])
    rollouts = Rollouts(RLRecipe(index="", instructions=False, **keys), engine, found, 999)
    return asyncio.run(rollouts.sample([QUESTION] * n, "seed")), found


def test_a_rollout_is_the_strategys_trajectory_and_its_reward():
    [rollout], found = sample(Writes(ASK + deeprag.SEARCH), price={"retrievals": 0.25})
    assert (rollout.trajectory.answer, rollout.trajectory.retrievals, found.queries) == ("Rome", 1, ["Who?"])
    assert rollout.reward == 0.75 and not rollout.branches
    assert (rollout.read, rollout.written) == (20, sum(call.completion_tokens for call in rollout.trajectory.calls))


def test_prompts_of_the_users_own_are_read_once_and_begin_each_rollout(tmp_path: Path):
    (tmp_path / "deeprag.txt").write_text("Split the question.")
    recipe = RLRecipe(index="", prompts=str(tmp_path))
    (tmp_path / "deeprag.txt").unlink()

    class Kept(Writes):
        async def complete(self, prompt: str, sampling: Sampling) -> Completion:
            assert prompt.startswith("Split the question.\n\nQuestion: Where")
            return await super().complete(prompt.partition("\n\n")[2], sampling)

    made = Rollouts(recipe, Kept(ASK + deeprag.SEARCH), Found([]), 999).sample([QUESTION] * 2, "seed")
    assert len(asyncio.run(made)) == 2
    (tmp_path / "deeprags.txt").write_text("x")
    with pytest.raises(UserError, match=r"rl.prompts: .*deeprags.txt: no prompt has this file's name"):
        RLRecipe(index="", prompts=str(tmp_path))
    with pytest.raises(UserError, match=r"rl.prompts: .* not used without instructions"):
        RLRecipe(index="", instructions=False, prompts=str(tmp_path))


def test_calls_are_sampled_each_with_its_own_seed():
    engine, again = Writes(ASK + deeprag.SEARCH), Writes(ASK + deeprag.SEARCH)
    for each in (engine, again):
        sample(each, n=3, temperature=0.5)
    assert {sampling.temperature for sampling in engine.samplings} == {0.5}
    assert len({sampling.seed for sampling in engine.samplings}) == len(engine.samplings) == 6
    assert again.samplings == engine.samplings


@pytest.mark.parametrize(
    ("first", "taken", "other"),
    [
        (ASK + deeprag.SEARCH, [0.75] * 3, [0.0] * 3),
        (f"{ASK}{deeprag.INTERMEDIATE} he\n{deeprag.FINAL} Oslo\n", [0.0] * 3, [0.75] * 3),
    ],
)
def test_both_decisions_are_tried_at_a_state(first: str, taken: list[float], other: list[float]):
    """Only a passage tells the answer, at a price."""
    engine = Writes(first)
    [rollout], _ = sample(engine, credit="tree", branches=3, price={"retrievals": 0.25})
    assert rollout.branches == [Branch(0, taken, other)]
    assert rollout.branches[0].advantage == taken[0] - other[0]
    assert rollout.read == 10 * len(engine.samplings) == 10 * (len(rollout.trajectory.calls) + 6)


def test_a_transcript_without_a_decision_has_no_branch():
    engine = Writes(f"{deeprag.FINAL} Oslo\n")
    [rollout], _ = sample(engine, credit="tree")
    assert not rollout.branches and len(engine.samplings) == 1


TWICE = f"{ASK}{deeprag.INTERMEDIATE} he\n{ASK}{deeprag.SEARCH}"


def test_states_that_a_group_visits_together_are_tried_once():
    """Both decisions of each of two states, in a group of three equal rollouts; each of two groups has its own."""
    engine = Writes(TWICE)
    made, _ = sample(engine, n=6, group=3, credit="tree", branches=2)
    own = sum(len(each.trajectory.calls) for each in made)
    assert len(engine.samplings) == own + 2 * 2 * 2 * 2
    for each in made:
        tried = [(branch.step, len(branch.taken), len(branch.other)) for branch in each.branches]
        assert tried == [(0, 2, 2), (1, 2, 2)]
        assert each.branches == made[0].branches
    assert sum(each.read for each in made) == 10 * len(engine.samplings)


def test_no_more_states_are_tried_than_a_question_has_rollouts():
    [rollout], _ = sample(Writes(TWICE), group=1, credit="tree")
    assert [branch.step for branch in rollout.branches] in ([0], [1])


def test_a_forced_answer_is_not_trained():
    """The model ends its transcript after an answer, so that the prompt that forces the end continues its text."""
    first = f"{ASK}{deeprag.INTERMEDIATE} he\n"
    engine = Writes(first)
    [rollout], _ = sample(engine)
    assert rollout.trajectory.notes == {"cut": "the controller did not go on"} and len(engine.samplings) == 2
    assert TOKENIZER.decode(rollout.row.completion_ids) == first
    assert all(rollout.row.trained) and rollout.row.lost > 0


def test_a_search_costs_one_call_more_than_no_search():
    strategy = DeepRAG(Kit(Writes(), Found([]), instructions=False))
    step = Step(subquery="What?", decision=Decision.RETRIEVE, passages=[Passage(id="p", text="x")], answer="y")
    done = {d: asyncio.run(strategy.branch(Run(strategy, QUESTION), [step], "Who?", d)) for d in Decision}
    assert [len(done[d].calls) for d in (Decision.RETRIEVE, Decision.PARAMETRIC)] == [2, 1]
    for decision, trajectory in done.items():
        assert [s.decision for s in trajectory.steps] == [Decision.RETRIEVE, decision]
        assert trajectory.steps[0].passages == step.passages and trajectory.steps[1].answer == "he"


def test_a_transcript_that_becomes_too_long_fails_and_pays_for_what_it_did():
    [rollout], _ = sample(Writes(TWICE, limit=150), price={"calls": 0.5})
    assert (rollout.reward, rollout.trajectory.error) == (-0.5, "too long")
    assert sum(rollout.row.trained) > 10
    with pytest.raises(UserError, match=r"question 'q': its prompt is refused \(too long\); remove it"):
        sample(Writes(ASK, limit=10))


class Plans(Writes):
    """An engine that plans in one step, and then knows the answer."""

    def text(self, prompt: str) -> str:
        planning = prompt.endswith(planrag.PLAN.lead)
        return ' [{"id": "Q1.1", "question": "Who is he?", "parents": []}]' if planning else ' {"Response": "Rome"}'


def trained_text(rollout: Rollout) -> str:
    pairs = zip(rollout.row.completion_ids, rollout.row.trained, strict=True)
    return TOKENIZER.decode([token for token, flag in pairs if flag])


def test_the_plan_alone_is_sampled_and_trained():
    engine = Plans()
    [rollout], found = sample(engine, strategy="planrag", price={"retrievals": 0.25})
    assert (rollout.reward, rollout.trajectory.answer, found.queries) == (0.75, "Rome", ["Who is he?"])
    planner, generator = engine.samplings
    assert planner.temperature == 1 and planner.seed is not None and planner.json_schema is None
    assert generator.temperature == 0 and generator.json_schema is not None
    assert "Who is he?" in trained_text(rollout)
    assert "Rome" not in TOKENIZER.decode(rollout.row.completion_ids)
    assert rollout.read == 20 and rollout.written == sum(c.completion_tokens for c in rollout.trajectory.calls)


class Thinks(Writes):
    """DualRAG's modules: they search for an entity, summarize what they found, and then know enough."""

    def text(self, prompt: str) -> str:
        more = "true" if "Knowledge: nothing" in prompt else "false"
        texts = {
            "Reasoner:": f'{{"thought": "Who is he?", "retrieve": {more}}}',
            "Entities:": '[{"entity": "he", "queries": ["him"]}, {"entity": "she", "queries": ["her"]}]',
            "Summary:": " He is of Rome.",
            "Answer:": " Rome",
        }
        [text] = [text for lead, text in texts.items() if prompt.rstrip().endswith(lead)]
        return text


def test_one_call_of_dualrags_modules_is_trained_at_random():
    engine = Thinks()
    made, _ = sample(engine, n=40, strategy="dualrag", price={"retrievals": 0.25})
    ended = {(each.reward, each.trajectory.answer, len(each.trajectory.calls)) for each in made}
    assert len(made) == 40 and ended == {(0.5, "Rome", 6)}
    assert all(sampling.temperature == 1 and sampling.json_schema is None for sampling in engine.samplings)
    ends = ['"retrieve": true}', '"retrieve": false}', '["her"]}]', "He is of Rome.", "Rome"]
    trained = list(map(trained_text, made))
    assert {end: any(text.endswith(end) for text in trained) for end in ends} == dict.fromkeys(ends, True)
    assert all(each.row.lost == 0 and text.endswith(tuple(ends)) for each, text in zip(made, trained, strict=True))
