"""The formats of prompts and completions: rendering and parsing are inverse, malformed text raises no error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_train.formats import deeprag, reader
from rag_train.schema import Decision, Passage, Step

line = st.text(min_size=1, max_size=40).filter(lambda t: deeprag.one_line(t) != "")
passages = st.lists(st.builds(Passage, id=st.just(""), title=st.text(max_size=10), text=line), max_size=3)
steps = st.lists(
    st.one_of(
        st.builds(Step, subquery=line, decision=st.just(Decision.PARAMETRIC), answer=line),
        st.builds(Step, subquery=line, decision=st.just(Decision.RETRIEVE), passages=passages, answer=line),
    ),
    max_size=4,
)


@pytest.mark.slow
@given(steps, line)
def test_parsing_and_rendering_are_inverse(steps: list[Step], answer: str):
    text = deeprag.text_of(steps, answer)
    parsed = deeprag.parse(text)
    assert parsed.problems == []
    assert deeprag.text_of(parsed.steps, parsed.answer) == text
    assert [s.decision for s in parsed.steps] == [s.decision for s in steps]


@given(st.text())
def test_any_text_can_be_parsed(text: str):
    deeprag.parse(text)
    reader.parse(text)


def test_masks_the_text_of_the_harness():
    steps = [
        Step(
            subquery="Who?",
            decision=Decision.RETRIEVE,
            passages=[Passage(id="1", title="T", text="a\nFollow up: not a step")],
            answer="X",
        ),
        Step(subquery="When?", decision=Decision.PARAMETRIC, answer="1950"),
    ]
    assert [(s.text, s.trained) for s in deeprag.render(steps, "1950")] == [
        ("Follow up: Who?\nLet's search the question in Wikipedia.\n", True),
        ("Context: T: a Follow up: not a step\nIntermediate answer:", False),
        (" X\nFollow up: When?\nIntermediate answer: 1950\nSo the final answer is: 1950\n", True),
    ]


def test_keeps_valid_lines_of_malformed_text():
    parsed = deeprag.parse(
        "chatter\nfollow up : Who?\nLet\u2019s search the question on Wikipedia\nIntermediate answer: X\n"
        "Intermediate answer: again\nFollow up: When?\nSo the final answer is: 3\nQuestion: more"
    )
    assert [(s.subquery, s.decision, s.answer) for s in parsed.steps] == [
        ("Who?", Decision.RETRIEVE, "X"),
        ("When?", Decision.PARAMETRIC, ""),
    ]
    assert parsed.answer == "3"
    assert len(parsed.problems) == 3


def test_finds_the_answer_in_any_case():
    assert reader.parse("It is X.\nSO THE FINAL ANSWER IS : X\nQuestion: more") == ("It is X.", "X")
    assert reader.parse("It is X") == ("It is X", None)
