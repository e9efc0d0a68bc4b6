"""Targets that cannot be known from their prompts."""

import pytest

from rag_train.data_synth.knowable import unknown
from rag_train.schema import Segment, SFTRecord

PROMPT = (
    "Ohio is in the instruction.\n\nQuestion: Where was the singer of Hello Love born?\nKnown: Q=Who? A=Hank Snow\n"
)


def example(target: str, source: str = "gold") -> SFTRecord:
    segments = [Segment(text="Answer:", trained=False), Segment(text=f" {target}\n", trained=True)]
    return SFTRecord(
        id="r", prompt=PROMPT, completion=f"Answer: {target}\n", segments=segments, source=source, task="t"
    )


@pytest.mark.parametrize(
    "target",
    [
        "Hank Snow", "hello love", "yes", "single-step question", "Hank Snow && Hello Love",
        "Where did Hank Snow, the singer, grow up?", "I still need to know: When was Hank Snow born?",
        '[{"entity":"Hello Love","queries":["Who sang Hello Love?"]}]',
        '[{"id":"Q1.1","question":"Who sings?","parents":[]},{"id":"Q2.1","question":"Where was <A1.1>?"}]',
    ],
)  # fmt: skip
def test_these_can_be_known(target: str):
    assert unknown(example(target)) == []


@pytest.mark.parametrize(
    ("target", "missing"),
    [
        ("Ohio", ["Ohio"]),
        ("land-grant university", ["land-grant university"]),
        ("Hank Snow && 1914", [" 1914"]),
        ("The singer of Hello Love is Ada Lovelace.", ["Ada", "Lovelace."]),
        ('[{"entity":"Hello Love (song)","queries":["Who sang it in 1960?"]}]', ["1960?", "Hello Love (song)"]),
    ],
)
def test_these_cannot(target: str, missing: list[str]):
    assert unknown(example(target)) == missing
    assert unknown(example(target, "memory")) == []
