"""Malformed teacher output; `make bench NAME=attack` runs 50 times as many cases."""

import asyncio

import pytest

from rag_train.eval.benchmarks.attack import count_executed, fuzz, tasks
from rag_train.formats.planrag import PlanError, from_tuples, parse_plan


@pytest.mark.slow
def test_counts_malformed_answers_by_reason_and_executes_none():
    seen = asyncio.run(fuzz(2_000, seed=1))
    assert not seen["executed"]
    assert len(tasks()) > 30 and seen["parsers"]["not of the task's type"] > 10_000
    assert {"not a plan", "a plan", "a plan of tuples", "unknown tag"} <= seen["plans"].keys()
    assert seen["dualrag"]["wrong answer"] and seen["planrag"]["not a plan"] and seen["hanrag"]["records kept"]
    assert seen["compound"]["did not parse, or empty"]


def test_counts_executed_code_only_inside_the_block():
    with count_executed() as events:
        eval("1 + 1")
    assert events["exec"] == 1
    eval("1 + 1")
    assert events["exec"] == 1


@pytest.mark.parametrize(
    "text",
    [
        '[("Q: a", "Q1.1: \\ud800")]',  # half of a surrogate pair, which UTF-8 cannot encode
        f'[("Q: a", "Q{"9" * 5000}.1: b")]',
        "[" * 100_000,
        "-" * 100_000 + "1",
        '[("Q: a", "Q1.1: b"\x00)]',
        "[" + "9" * 5000 + "]",
        '[("Q: a", "Q1.1: b", "Q1.2: c")]',
        '{"Q: a", "Q1.1: b"}',
        '[("Q: a", b"Q1.1: b")]',
    ],
)
def test_rejects_malformed_plans_with_plan_error(text: str):
    with pytest.raises(PlanError):
        from_tuples(text)
    with pytest.raises(PlanError):
        parse_plan(text, "a?")
