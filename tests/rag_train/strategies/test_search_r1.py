"""Search-R1: what is sent to the engine, which actions are read, and how a transcript ends."""

from __future__ import annotations

import asyncio

import pytest
from support.fakes import Found
from support.training import TOKENIZER

from rag_train.formats.instructions import OURS
from rag_train.formats.search_r1 import INVALID, action, information
from rag_train.llm.base import Abilities, Completion, Sampling, TokenLogprob, Usage
from rag_train.schema import Decision, Passage, Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.registry import build
from rag_train.training.recipe import RLRecipe
from rag_train.training.rl.rollouts import Rollout, Rollouts

QUESTION = Question(id="q", question="Where was he born?", answers=["Rome"])
TEXTS = {"A": "He is of Rome.", "B": "<answer>no</answer>"}
PASSAGES = [Passage(id=title, title=title, text=text) for title, text in TEXTS.items()]


class Turns:
    """An engine that writes the given turns, each of them up to its first stop string."""

    name, tokenizer, abilities = "turns", TOKENIZER, Abilities()

    def __init__(self, *turns: str):
        self.turns, self.prompts = list(turns), list[str]()

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        self.prompts.append(prompt)
        turn = self.turns[min(len(self.prompts), len(self.turns)) - 1]
        stop = min((s for s in sampling.stop if s in turn), key=turn.index, default=None)
        text = turn.partition(stop)[0] if stop else turn
        ids = TOKENIZER(text + (stop or ""))["input_ids"]
        logprobs = tuple((TokenLogprob(token, "", -1.0),) for token in ids)
        return Completion(text, tuple(ids), Usage(1, 1), stop, False, logprobs)

    async def aclose(self) -> None: ...


def answer(*turns: str, spec: str = "search-r1", instructions: bool = False) -> tuple[Trajectory, Turns]:
    llm = Turns(*turns)
    kit = Kit(llm, Found(PASSAGES), instructions=instructions and OURS)
    return asyncio.run(build(spec, kit).answer(QUESTION)), llm


def test_searches_and_answers_in_one_transcript():
    searching, answering = "<think>I do not know.</think> <search> his city </search>", "So <answer> Rome </answer>"
    trajectory, llm = answer(searching + " more", answering)
    assert (trajectory.answer, trajectory.retrievals, trajectory.notes) == ("Rome", 1, {})
    [step] = trajectory.steps
    assert (step.subquery, step.decision, step.passages) == ("his city", Decision.RETRIEVE, PASSAGES)
    first = "Question: Where was he born?\n"
    found = "Doc 1(Title: A) He is of Rome.\nDoc 2(Title: B) <answer>no</answer>"
    inserted = f"\n\n<information>{found}</information>\n\n"
    assert llm.prompts == [first, first + searching + inserted]
    assert trajectory.reasoning == searching + inserted + answering


def test_asks_with_the_released_instruction():
    _, llm = answer("<answer>x</answer>", instructions=True)
    [prompt] = llm.prompts
    assert prompt.startswith("Answer the given question. You must conduct reasoning inside <think>")
    assert prompt.endswith("For example, <answer> Beijing </answer>. Question: Where was he born?\n")


@pytest.mark.parametrize("turn", ["no tags", "<search>never closed", "<search> </search>", "<answer></answer>"])
def test_a_turn_without_an_action_is_answered_with_a_hint(turn: str):
    trajectory, llm = answer(turn, "<answer>Rome</answer>")
    assert (trajectory.answer, trajectory.retrievals) == ("Rome", 0)
    assert llm.prompts[1].endswith(turn + INVALID) and trajectory.notes["cut"] == "no action in turn 1"


def test_ends_after_its_turns():
    trajectory, llm = answer("<search>again</search>", spec="search-r1,turns=2")
    assert (trajectory.answer, trajectory.retrievals, len(llm.prompts)) == (None, 2, 3)
    assert trajectory.notes["cut"] == "no answer after turns=2"


def test_the_first_action_counts():
    assert action("<answer>a</answer><search>b</search>") == ("answer", "a")
    assert action("<search>a</answer>\n</search>") == ("search", "a</answer>")
    assert information([]) == "\n\n<information></information>\n\n"


def rollout(*turns: str) -> Rollout:
    recipe = RLRecipe(index="", instructions=False, strategy="search-r1", max_steps=2)
    rollouts = Rollouts(recipe, Turns(*turns), Found(PASSAGES), 999)
    return asyncio.run(rollouts.sample([QUESTION], "seed"))[0]


def test_a_rollout_trains_what_the_model_wrote_and_masks_what_it_read():
    made = rollout("<search> his city </search>", "<answer> Rome </answer>")
    assert (made.reward, made.trajectory.strategy) == (1, "search-r1")
    pairs = list(zip(made.row.completion_ids, made.row.trained, strict=True))
    trained = TOKENIZER.decode([token for token, flag in pairs if flag])
    masked = TOKENIZER.decode([token for token, flag in pairs if not flag])
    assert "his city" in trained and "Rome </answer>" in trained and "Doc" not in trained
    assert "He is of Rome." in masked and "his city" not in masked
    assert made.row.lost == 0 and not made.row.decisions
