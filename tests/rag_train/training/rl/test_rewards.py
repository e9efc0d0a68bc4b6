"""Rewards: each part, their weighted sum, and functions of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.errors import UserError
from rag_train.schema import Decision, LLMCall, Question, Step, Trajectory
from rag_train.training.recipe import load_train_recipe
from rag_train.training.rl.rewards import PARTS, Rewards

QUESTION = Question(id="q", question="Who?", answers=["Ada Lovelace", "the Countess"])


def trajectory(answer: str | None = "Ada", searches: int = 0, written: tuple[int, ...] = (), **more) -> Trajectory:
    step = Step(subquery="Who?", decision=Decision.RETRIEVE)
    calls = [LLMCall(module="controller", prompt_tokens=100, completion_tokens=count) for count in written]
    kept = {"question_id": "q", "question": "Who?", "strategy": "deeprag", "answer": answer, "calls": calls}
    return Trajectory(**kept, steps=[step] * searches, **more)


@pytest.mark.parametrize(
    ("given", "part", "value"),
    [
        (trajectory("countess."), "exact_match", 1),
        (trajectory("Ada"), "exact_match", 0),
        (trajectory(None), "exact_match", 0),
        (trajectory("Ada"), "f1", 2 / 3),
        (trajectory("Ada"), "format", 1),
        (trajectory(None), "format", 0),
        (trajectory("Ada", notes={"cut": "a call ended"}), "format", 0),
        (trajectory("Ada", error="too long"), "format", 0),
        (trajectory(searches=2), "retrievals", 2),
        (trajectory(written=(3, 4)), "calls", 2),
        (trajectory(written=(3, 4)), "tokens", 7),
    ],
)
def test_value_of_a_part(given: Trajectory, part: str, value: float):
    assert PARTS[part](QUESTION, given) == pytest.approx(value)


def test_an_answer_is_compared_by_the_rules_of_its_dataset():
    question = Question(id="q", question="?", answers=["a-b"], metadata={"scoring": "triviaqa"})
    assert PARTS["exact_match"](question, trajectory("a b")) == 1
    assert PARTS["exact_match"](question.model_copy(update={"metadata": {}}), trajectory("a b")) == 0


PRICED = Rewards({"exact_match": 2, "f1": 1}, {"retrievals": 0.3, "calls": 0.1, "tokens": 0.01})


@given(st.sampled_from(["countess", "Ada", None]), st.integers(0, 4), st.lists(st.integers(0, 50), max_size=4))
def test_reward_is_the_value_minus_the_prices(answer: str | None, searches: int, written: list[int]):
    value = {"countess": 3, "Ada": 2 / 3, None: 0}[answer]
    price = 0.3 * searches + 0.1 * len(written) + 0.01 * sum(written)
    parts = PRICED.measure(QUESTION, trajectory(answer, searches, tuple(written)))
    assert PRICED.total(parts) == pytest.approx(value - price)
    assert parts.keys() == PARTS.keys()


OWN = """
from rag_train.training.rl.rewards import needing

LIMIT = 3

def brief(question, trajectory):
    return 1.0 if len(trajectory.answer) <= LIMIT else float("nan")

@needing("gold_passages")
def found(question, trajectory):
    return 1.0

def lonely(question):
    return 1.0

async def later(question, trajectory):
    return 1.0
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The working directory has the modules own_rewards and broken_rewards, and a recipe, rl.yaml."""
    (tmp_path / "own_rewards.py").write_text(OWN)
    (tmp_path / "broken_rewards.py").write_text("import not_there")
    (tmp_path / "q.jsonl").touch()
    keys = "stage: rl\nmodel: m\ndata: q.jsonl\noutput_dir: out\nlr: 1.0e-3\nepochs: 1\nbatch_size: 8\n"
    (tmp_path / "rl.yaml").write_text(f"{keys}rl:\n  index: i\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_rewards", raising=False)


def test_a_function_of_the_users_own_is_a_part_whose_code_belongs_to_the_run(own):
    settings = load_train_recipe("rl.yaml", ["rl.reward={f1: 2, own_rewards:brief: 0.5}"]).rl
    assert settings is not None
    rewards = Rewards(settings.reward, settings.price)
    parts = rewards.measure(QUESTION, trajectory("Ada"))
    assert rewards.total(parts) == pytest.approx(2 * 2 / 3 + 0.5) and parts["own_rewards:brief"] == 1
    assert rewards.own_code().keys() == {"own_rewards:brief"}
    for answer, problem in (("Countess", "the value is nan; return a finite"), (None, "TypeError: object of type")):
        with pytest.raises(UserError, match=f"^rl.reward.own_rewards:brief: question 'q': {problem}"):
            rewards.measure(QUESTION, trajectory(answer))


def test_a_question_without_what_a_part_needs_is_refused(own):
    with pytest.raises(
        UserError, match=r"rl.price.own_rewards:found: needs gold_passages, which question 'q' lack"
    ):
        Rewards({}, {"own_rewards:found": 1}).check([QUESTION])


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("exact_mach: 1", "exact_mach: unknown; the parts are exact_match, f1, .*, and module:function for one"),
        ("no_such:f: 1", "no_such:f: module 'no_such' cannot be imported .*; give one that is installed or"),
        ("broken_rewards:f: 1", "broken_rewards:f: module .* cannot be imported .*No module named 'not_there'"),
        ("own_rewards:f: 1", "own_rewards:f: .*own_rewards.py has no function 'f'"),
        ("own_rewards:LIMIT: 1", "own_rewards:LIMIT: .*own_rewards.py has no function 'LIMIT'"),
        ("own_rewards:lonely: 1", r"own_rewards:lonely: not a function of two arguments; define def lonely\(quest"),
        ("own_rewards:later: 1", "own_rewards:later: not a function of two arguments"),
        ("f1: .inf", "f1: input should be a finite number"),
        ("f1: -1", "f1: input should be greater than or equal to 0"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused_with_its_place(own, part: str, problem: str):
    with pytest.raises(UserError, match=rf"^override 'rl.reward=.*': rl\.reward\.{problem}"):
        load_train_recipe("rl.yaml", [f"rl.reward={{{part}}}"])
