"""Compressed data blocks for the page's examples, which the page unpacks on demand.

A block is gzipped JSON in base64 (RFC 4648), so that no text in it can end its script element. Passages that
several trajectories share are stored once.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rag_train.answers import normalize
from rag_train.eval.metrics.scores import Score
from rag_train.schema import Decision, Passage, Question, Step, Trajectory

EXAMPLES, PASSAGES = 50, 100
"""Trajectories and passages per block: enough to compress well, few enough to unpack in milliseconds."""


class Blocks:
    """Named blocks, in the order in which they were added."""

    def __init__(self) -> None:
        self.packed: dict[str, str] = {}

    def add(self, name: str, text: str) -> None:
        """Add a block; ``text`` is JSON."""
        self.packed[name] = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()

    def add_chunks(self, name: str, texts: Sequence[str], size: int) -> None:
        """Add the JSON values ``texts`` as arrays ``name-0``, ``name-1``, … of ``size`` values each."""
        for start in range(0, len(texts), size):
            self.add(f"{name}-{start // size}", f"[{','.join(texts[start : start + size])}]")

    def html(self) -> Iterator[str]:
        """Yield a script element per block."""
        for name, packed in self.packed.items():
            yield f'<script type="application/gzip" id="{name}">{packed}</script>\n'


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def pack_questions(questions: Sequence[Question]) -> str:
    """Pack questions, with ids in place of gold passages."""
    fields = {"id", "question", "answers", "type", "hops", "decomposition"}
    return to_json(
        [
            question.model_dump(include=fields, exclude_defaults=True) | {"gold": _gold_ids(question)}
            for question in questions
        ]
    )


def _gold_ids(question: Question) -> list[str]:
    ids = [passage.id for passage in question.gold_passages]
    ids += [id for step in question.decomposition for id in step.passage_ids]
    return list(dict.fromkeys(ids))


def pack_outcomes(answers: Sequence[str | None], scores: Sequence[Score]) -> str:
    """Pack the data of a cell for the example list: answers, F1, and a digit per question, 1 if correct."""
    outcomes = {
        "answers": answers,
        "f1": [round(score.f1, 2) for score in scores],
        "em": "".join("1" if score.em == 1 else "0" for score in scores),
        "accuracy": "".join("1" if score.accuracy == 1 else "0" for score in scores),
    }
    return to_json(outcomes)


class Passages:
    """Distinct passages, numbered in order of first use, so that an example's passages are in the same block."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str, str], int] = {}

    def number(self, passage: Passage) -> int:
        """Return the number of ``passage``, adding it if new."""
        return self.numbers.setdefault((passage.id, passage.title, passage.text), len(self.numbers))


def pack_trajectory(trajectory: Trajectory, passages: Passages, known: Mapping[str, bool]) -> str:
    """Pack a trajectory: calls summed by module, passages as numbers, and no fields that the page has elsewhere.

    ``known`` maps normalised subqueries to whether the model knows the fact; the steps that ask for it contain the
    value.
    """
    elsewhere = {"question_id", "question", "strategy", "answer", "steps", "calls"}
    packed = trajectory.model_dump(exclude_defaults=True, exclude=elsewhere)
    calls, read, written = Counter[str](), Counter[str](), Counter[str]()
    for call in trajectory.calls:
        calls[call.module] += 1
        read[call.module] += call.prompt_tokens
        written[call.module] += call.completion_tokens
    packed["steps"] = [_pack_step(step, passages, known) for step in trajectory.steps]
    packed["calls"] = [[module, calls[module], read[module], written[module]] for module in calls]
    packed["retrievals"], packed["rounds"] = trajectory.retrievals, trajectory.rounds
    return to_json(packed)


def _pack_step(step: Step, passages: Passages, known: Mapping[str, bool]) -> dict[str, Any]:
    packed = step.model_dump(mode="json", exclude_defaults=True, exclude={"passages", "decision"})
    packed["retrieved"] = step.decision is Decision.RETRIEVE
    packed["passages"] = [[passages.number(passage), passage.score] for passage in step.passages]
    fact = known.get(normalize(step.subquery))
    return packed if fact is None else packed | {"known": fact}
