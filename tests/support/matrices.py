"""Evaluation matrices for tests; the largest has a planner, a decider and an attacker over generated questions."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rag_train.eval.matrix.cell import Cell, CellName
from rag_train.eval.matrix.store import write_cell, write_matrix
from rag_train.eval.report.matrix import write_matrix_report
from rag_train.schema import Decision, GoldStep, LLMCall, Passage, Plan, PlanNode, Question, Step, Trajectory

EVIL = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
SIZE = 400


def questions() -> list[Question]:
    """Return questions of two to four hops. Every second question starts with a known hop; the last is hostile."""
    made = [
        Question(
            id=f"q{i}",
            question=f"Where was the maker of thing-{i} born?",
            answers=[f"City {i}"],
            hops=2 + i % 3,
            type="chain" if i % 4 else "comparison",
            decomposition=[
                GoldStep(
                    subquery=f"Who made thing {i}?", answer=f"Maker {i}", passage_ids=[f"p{i}"], known=i % 2 == 0
                ),
                GoldStep(subquery=f"Where was maker {i} born?", answer=f"City {i}"),
            ],
        )
        for i in range(SIZE - 1)
    ]
    evil = GoldStep(subquery=EVIL, answer=EVIL, known=True)
    return [*made, Question(id=EVIL, question=EVIL, answers=[EVIL], hops=2, type=EVIL, decomposition=[evil])]


def planned(question: Question, right: bool) -> Trajectory:
    """Return two steps of a plan of three nodes; every tenth question has the same passages."""
    number = int(re.sub(r"\D", "", question.id) or 0) % 10
    passages = [Passage(id=f"p{number}", title=f"Thing {number}", text=f"It was made in City {number}.", score=1.5)]
    steps = [
        Step(
            subquery=gold.subquery,
            decision=Decision.RETRIEVE,
            passages=passages,
            answer="found",
            round=n,
            node=f"Q{n}.1",
        )
        for n, gold in enumerate(question.decomposition, 1)
    ]
    nodes = [PlanNode(id="Q1.1", question="who?"), PlanNode(id="Q1.2", question="when?")]
    nodes.append(PlanNode(id="Q2.1", question="where?", parents=["Q1.1", "Q1.2"]))
    return Trajectory(
        question_id=question.id,
        question=question.question,
        strategy="planner",
        steps=steps,
        answer=question.answers[0] if right else "Nowhere",
        plan=Plan(nodes=nodes),
        calls=[LLMCall(module="plan", prompt_tokens=100, completion_tokens=10)] * 2,
    )


def decided(question: Question, right: bool) -> Trajectory:
    """Return a step with a retrieval probability, and an outline."""
    step = Step(
        subquery=question.decomposition[0].subquery,
        decision=Decision.PARAMETRIC,
        answer="known",
        retrieve_probability=0.15 if right else 0.85,
    )
    return Trajectory(
        question_id=question.id,
        question=question.question,
        strategy="decider",
        steps=[step],
        answer=question.answers[0] if right else None,
        outline={"Maker": ["makes things", "was born"]},
        calls=[LLMCall(module="controller", prompt_tokens=20, completion_tokens=5)],
    )


def hostile(question: Question, right: bool) -> Trajectory:
    """Return a trajectory with an attacker's text in every text field."""
    passage = Passage(id=EVIL, title=EVIL, text=EVIL, score=0.5)
    step = Step(
        subquery=EVIL,
        decision=Decision.RETRIEVE,
        passages=[passage],
        answer=EVIL,
        retrieve_probability=0.5,
        queries=[EVIL],
        node=EVIL,
    )
    return Trajectory(
        question_id=question.id,
        question=EVIL,
        strategy=EVIL,
        steps=[step],
        answer=EVIL,
        reasoning=EVIL,
        calls=[LLMCall(module=EVIL, prompt_tokens=1, completion_tokens=1)],
        error=EVIL,
        plan=Plan(nodes=[PlanNode(id=EVIL, question=EVIL)]),
        outline={EVIL: [EVIL]},
        notes={EVIL: EVIL},
    )


CELLS: dict[str, tuple[Callable[[Question, bool], Trajectory], float]] = {
    "planner": (planned, 0.6),
    "decider": (decided, 0.4),
    EVIL: (hostile, 0.0),
}


class Made:
    """A matrix directory with its page and the data it was made from."""

    def __init__(self, directory: Path):
        rng = random.Random(0)
        self.directory = directory
        self.questions = questions()
        self.page = directory / "page.html"
        self.ids: dict[str, str] = {}
        self.right: dict[str, list[bool]] = {}
        self.trajectories: dict[str, list[Trajectory]] = {}
        cells = []
        for name, (make, rate) in CELLS.items():
            self.right[name] = [rng.random() < rate for _ in self.questions]
            pairs = zip(self.questions, self.right[name], strict=True)
            self.trajectories[name] = [make(question, right) for question, right in pairs]
            cell = CellName("model", name, "made", "bm25", 0)
            cells.append(write_cell(directory, cell, self.questions, self.trajectories[name], {}))
            self.ids[name] = cells[-1].id
        write_matrix(directory, cells)
        write_matrix_report(self.page, directory)

    @property
    def url(self) -> str:
        return self.page.as_uri()

    def outcomes(self, a: str = "planner", b: str = "decider") -> list[str]:
        """Return two digits per question, for ``a`` and ``b``: 1 if the answer is right."""
        return [f"{x:d}{y:d}" for x, y in zip(self.right[a], self.right[b], strict=True)]


def numbered(*numbers: int) -> list[Question]:
    """Return a question for each number; the first hops of four neighbouring numbers have the same entity."""
    return [
        Question(
            id=f"q{n}",
            question=f"Is number {n}, which is {'even' if n % 2 == 0 else 'odd'}, good?",
            answers=["yes"],
            decomposition=[GoldStep(subquery=f"n{n}?", answer="x", entity=f"about {n // 4}")],
        )
        for n in numbers
    ]


def add_cell(output: Path, model: str, asked: list[Question], answers: Sequence[str | None]) -> Cell:
    """Write a cell of ``model`` with ``answers`` to the questions ``asked`` and add it to the matrix."""
    trajectories = [
        Trajectory(question_id=q.id, question=q.question, strategy="s", answer=a)
        for q, a in zip(asked, answers, strict=True)
    ]
    cell = write_cell(output, CellName(model, "s", "d", "", 0), asked, trajectories, {})
    write_matrix(output, [cell])
    return cell


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below ``folder`` by their relative paths."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
