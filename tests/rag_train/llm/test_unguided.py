"""Free text that is read as guided output: whole, or not at all."""

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.formats import deeprag, hanrag
from rag_train.formats.planrag import PLAN, Draft
from rag_train.formats.tasks import Task
from rag_train.llm.base import Sampling
from rag_train.llm.unguided import conform

NODES = '[{"id": "Q1.1", "question": "Who [1]?"}, {"id": "Q2.1", "question": "<A1.1>?", "parents": []}]'
ASK = Sampling(choice=(" yes", " no"))
LETTER = Sampling(choice=(" A", " B", " C"))


@pytest.mark.parametrize(
    "text",
    [
        NODES,
        f"Sure! Here is the [plan]:\n```json\n{NODES}\n```\nHope this helps",
        f"<think>\nmaybe [] or\n</think>\n\n{NODES}",
        f"maybe []\n</think>\n{NODES}",
        f'It has two {{steps}}: {NODES} "done"',
    ],
)
def test_json_is_read_among_words(text: str):
    assert conform(text, PLAN.sampling()) == NODES


@pytest.mark.parametrize(
    "text",
    [
        NODES[:-1] + ",]",
        NODES[:-1],
        f"<think>\nmaybe {NODES} hmm",
        f'{{"plan": {NODES}}}',
        f"Either [] or {NODES}",
        f"{NODES}\n[{{",
        '["Q1.1"]',
        '[{"question": "without an id?"}]',
        '[{"id": 1, "question": "with another type?"}]',
        '"[]"',
        "",
        "[" * 20_000,
    ],
)
def test_json_that_is_broken_or_not_of_the_schema_is_none(text: str):
    assert conform(text, PLAN.sampling()) is None


@given(st.lists(st.builds(Draft, id=st.text(), question=st.text(), parents=st.lists(st.text())), min_size=1))
def test_no_part_of_a_json_text_is_taken_for_it(drafts: list[Draft]):
    text = PLAN.completion(drafts).strip()
    assert [n for n in range(len(text)) if conform(text[:n], PLAN.sampling()) is not None] == []
    assert PLAN.parse(conform(text, PLAN.sampling())) == drafts


@pytest.mark.parametrize(
    ("output", "text"), [(bool, "true"), (int, "7"), (float, "0.5"), (str | None, "null"), (dict[str, Any], "{}")]
)
def test_json_of_any_type_is_read(output: Any, text: str):
    asked = Task("a", output=Literal["x"] if output is str else output).sampling()
    assert conform(text, asked) == text and conform('["x"]', asked) is None


@pytest.mark.parametrize(
    ("sampling", "text", "wanted"),
    [
        (ASK, "Yes.", " yes"),
        (ASK, "**No**, it does not.", " no"),
        (ASK, "The answer is yes.", " yes"),
        (ASK, "<think>no</think>yes", " yes"),
        (ASK, "<think>yes", None),
        (ASK, "It is not yes", None),
        (ASK, "yes or no", None),
        (ASK, "yesterday", None),
        (ASK, "ye", None),
        (LETTER, "B, because it needs a search", " B"),
        (LETTER, "A complex question", None),
        (hanrag.ROUTE.sampling(), "This is a complex question.", " complex question"),
        (hanrag.ROUTE.sampling(), "complex", None),
        (Sampling(choice=(" not true", " true")), "Not true.", " not true"),
    ],
)
def test_a_choice_is_named_alone_at_the_beginning_or_end(sampling: Sampling, text: str, wanted: str | None):
    assert conform(text, sampling) == wanted


def test_a_regular_expression_matches_the_whole_text():
    line = Sampling(regex=deeprag.ANSWER, stop=("\n",))
    assert conform("Paris", line) == conform(" Paris", line) == " Paris"
    turn = Sampling(regex=deeprag.TURN, stop=tuple(deeprag.STOP_SEARCH))
    assert conform("Follow up: Who?\n", turn) == "Follow up: Who?\n"
    assert conform("So the final answer is: Paris", turn) == "So the final answer is: Paris"
    assert conform("Well. So the final answer is: Paris\n", turn) is None


def test_schemas_with_choices_of_types_are_checked():
    schema = json.dumps({"anyOf": [{"const": 1}, {"type": "array", "items": {"enum": ["a"]}}]})
    asked = Sampling(json_schema=schema)
    assert conform('["a"]', asked) == '["a"]' and conform("1", asked) == "1"
    assert conform('["b"]', asked) is None and conform("2", asked) is None
