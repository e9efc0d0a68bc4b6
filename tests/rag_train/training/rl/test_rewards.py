"""Rewards: each part, and their weighted sum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.schema import Decision, LLMCall, Question, Step, Trajectory
from rag_train.training.recipe import PriceRecipe, RewardRecipe, RLRecipe
from rag_train.training.rl.rewards import PARTS, total, weights

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


PRICED = RLRecipe(
    index="",
    reward=RewardRecipe(exact_match=2, f1=1),
    price=PriceRecipe(retrievals=0.3, calls=0.1, tokens=0.01),
)


@given(st.sampled_from(["countess", "Ada", None]), st.integers(0, 4), st.lists(st.integers(0, 50), max_size=4))
def test_reward_is_the_value_minus_the_prices(answer: str | None, searches: int, written: list[int]):
    value = {"countess": 3, "Ada": 2 / 3, None: 0}[answer]
    price = 0.3 * searches + 0.1 * len(written) + 0.01 * sum(written)
    got = trajectory(answer, searches, tuple(written))
    assert total(QUESTION, got, weights(PRICED)) == pytest.approx(value - price)
    assert weights(PRICED).keys() == PARTS.keys()
