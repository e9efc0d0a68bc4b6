"""Running an evaluation matrix: what is answered, what is kept, and what is written."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fakes import Found, Says
from support.matrices import contents, numbered

import rag_train.eval.matrix.run
from rag_train.errors import UserError, masked
from rag_train.eval.matrix.cell import Cell, CellName, load_matrix
from rag_train.eval.matrix.estimate import CellEstimate, bound, estimate_table
from rag_train.eval.matrix.run import run_matrix
from rag_train.eval.matrix.store import read_cell
from rag_train.formats.deeprag import FINAL
from rag_train.formats.instructions import Instructions
from rag_train.jobs.items import OpenItems
from rag_train.llm.base import EngineError
from rag_train.llm.engines import EngineConfig
from rag_train.retrieval.fusion import FusedRetriever
from rag_train.retrieval.rerank import RerankedRetriever
from rag_train.schema import Passage, Question
from rag_train.strategies.base import STRATEGIES, Kit
from rag_train.strategies.kit import KitConfig, RoleConfig


class Fixed:
    def __init__(self, corpus: str = "c", name: str = "fixed"):
        self.corpus_sha256 = corpus
        self.name = name
        self.identity: list[str] = [masked(name), corpus]

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [[Passage(id="p", title="T", text=query, score=1.0)] for query in queries]


class FakeEngine:
    """Replaces `open_kit`: records started models and prompts; raises ``error`` for prompts that it fails on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.models: list[str] = []
        self.prompts: list[str] = []
        self.fails: Callable[[str], bool] = lambda prompt: False
        self.error: BaseException = EngineError("no answer")
        monkeypatch.setattr(rag_train.eval.matrix.run, "open_kit", self._open)

    @asynccontextmanager
    async def _open(self, config: KitConfig, retrievers):
        self.models.append(config.model)
        yield Kit(Says(self._answer), Found([]), config.passages, False)

    def _answer(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if self.fails(prompt):
            raise self.error
        lead = "" if prompt.endswith(FINAL) else f" Thus. {FINAL}"
        return f"{lead} yes" if "even" in prompt else f"{lead} no"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    return FakeEngine(monkeypatch)


def evaluate(
    output: Path,
    asked: dict[str, list[Question]],
    models: Sequence[str] = ("a",),
    strategies: Sequence[str] = ("direct", "rag"),
    retrievers: dict[str, Any] | None = None,
    **more: Any,
) -> list[Cell]:
    config = KitConfig(model="", indexes=[], **more)
    named = {model: model for model in models}
    return asyncio.run(run_matrix(config, named, strategies, asked, {"r": retrievers or {"": Fixed()}}, output))


def test_starts_a_model_once_and_answers_no_question_twice(started: FakeEngine, tmp_path: Path) -> None:
    first = evaluate(tmp_path, {"d": numbered(0, 1, 2)}, ["a", "b"])
    assert started.models == ["a", "b"] and len(started.prompts) == 2 * 2 * 3
    assert [cell.id for cell in first] == ["a/direct/d/r/0", "a/rag/d/r/0", "b/direct/d/r/0", "b/rag/d/r/0"]
    assert first[0].summary.em.mean == pytest.approx(2 / 3)
    before = contents(tmp_path)
    assert evaluate(tmp_path, {"d": numbered(0, 1, 2)}, ["a", "b"]) == first
    assert started.models == ["a", "b"] and contents(tmp_path) == before

    more = evaluate(tmp_path, {"d": numbered(4, 0, 1, 2), "e": numbered(1)}, ["a"])
    assert started.models == ["a", "b", "a"] and len(started.prompts) == 12 + 2 * 1
    assert more[0].summary.questions == 4 and more[0].summary.em.mean == 0.75
    cells = load_matrix(tmp_path).cells
    assert [cell.id for cell in cells][-2:] == ["a/direct/e/r/0", "a/rag/e/r/0"] and len(cells) == 6
    assert cells[2] == first[2], "the cell of the other model is unchanged"
    for cell in cells:
        asked, trajectories, scores = read_cell(tmp_path, cell)
        assert [q.id for q in asked] == [t.question_id for t in trajectories] == [s.question_id for s in scores]


def test_interrupted_run_ends_with_the_same_files(started: FakeEngine, tmp_path: Path) -> None:
    asked = {"d": numbered(*range(8))}
    evaluate(tmp_path / "whole", asked)
    started.prompts.clear()

    class Killed(BaseException):
        pass

    started.fails, started.error = (lambda prompt: len(started.prompts) == 12), Killed()
    with pytest.raises((Killed, BaseExceptionGroup)):
        evaluate(tmp_path / "killed", asked)
    started.fails = lambda prompt: False
    evaluate(tmp_path / "killed", asked)
    assert len(started.prompts) < 2 * 16, "finished questions are not asked again"
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_questions_that_an_engine_fails_on_stay_open_and_are_asked_again(
    started: FakeEngine, tmp_path: Path
) -> None:
    """A failure was final, kept nothing of what was done, and counted as a wrong answer."""
    asked = {"d": numbered(0, 2)}
    evaluate(tmp_path / "whole", asked, strategies=["ircot"])
    started.fails = lambda prompt: "number 2" in prompt and prompt.endswith(FINAL)
    with pytest.raises(OpenItems, match=r"a/ircot/d/r/0: .*: 1 of 2 questions done, 1 open \(no answer\); give"):
        evaluate(tmp_path / "open", asked, strategies=["ircot"])
    (partial,) = (tmp_path / "open" / "answers").rglob("*.partial")
    (line,) = [json.loads(line) for line in partial.read_text().splitlines() if '"open"' in line]
    (trajectory,) = line["records"]
    assert line["error"] == trajectory["error"] == "no answer"
    assert line["counts"]["engine_calls"] == len(trajectory["calls"]) == 2 and len(trajectory["steps"]) == 2
    started.fails = lambda prompt: False
    before = len(started.prompts)
    evaluate(tmp_path / "open", asked, strategies=["ircot"])
    assert all("number 2" in prompt for prompt in started.prompts[before:]), "only the open question is asked"
    assert contents(tmp_path / "open") == contents(tmp_path / "whole")


def test_a_gone_engine_ends_the_run_and_keeps_the_complete_cells(started: FakeEngine, tmp_path: Path) -> None:
    """The failure of a service ended the run at once, and the answers of complete cells were not scored."""
    started.fails = lambda prompt: "number 1" in prompt
    asked = {"d": numbered(0), "e": numbered(*range(10, 20)), "f": numbered(2)}
    with pytest.raises(OpenItems, match="a/direct/e/r/0: no scores, because questions are open"):
        evaluate(tmp_path, asked, strategies=["direct"])
    assert [cell.id for cell in load_matrix(tmp_path).cells] == ["a/direct/d/r/0"]
    assert not any("number 2" in prompt for prompt in started.prompts), "the run has ended"


def test_a_prompt_that_is_too_long_is_an_answer_with_an_error(started: FakeEngine, tmp_path: Path) -> None:
    started.fails, started.error = (lambda prompt: "number 2" in prompt), ValueError("too long")
    (cell,) = evaluate(tmp_path, {"d": numbered(0, 2)}, strategies=["direct"])
    assert cell.summary.errors == 1 and cell.summary.em.mean == 0.5
    assert [t.error for t in read_cell(tmp_path, cell)[1]] == [None, "too long"]
    assert [t.refused for t in read_cell(tmp_path, cell)[1]] == ["", "too long"]
    assert "refused, which count as wrong: direct (1 of 2: too long 1)" in (tmp_path / "tables.md").read_text()


@pytest.mark.parametrize("names", [("a b", "a_b"), ("a/b", "a_b")])
def test_names_with_the_same_files_are_refused(started: FakeEngine, tmp_path: Path, names: tuple[str, str]) -> None:
    """The second cell silently replaced the first."""
    with pytest.raises(UserError, match="would have the same files"):
        evaluate(tmp_path, {name: numbered(i) for i, name in enumerate(names)})
    assert not started.prompts
    evaluate(tmp_path, {names[0]: numbered(0)})
    with pytest.raises(UserError, match="belongs to the cell"):
        evaluate(tmp_path, {names[1]: numbered(0)})


def test_other_questions_under_the_same_name_are_refused(started: FakeEngine, tmp_path: Path) -> None:
    """Two files called dev.jsonl in two commands were one data set."""
    evaluate(tmp_path, {"dev": numbered(0, 1)})
    with pytest.raises(UserError, match="the cell was answered for other questions; give the model, the questions"):
        evaluate(tmp_path, {"dev": numbered(2, 3)})
    (cell, _) = evaluate(tmp_path, {"dev": numbered(1, 2)})
    assert cell.summary.questions == 2


def test_cells_with_different_questions_are_in_different_tables(started: FakeEngine, tmp_path: Path) -> None:
    """104 questions stood in the same table as 4."""
    evaluate(tmp_path, {"d": numbered(0, 1)}, ["a"], ["direct"])
    evaluate(tmp_path, {"d": numbered(0, 1, 2)}, ["b"], ["direct"])
    text = (tmp_path / "tables.md").read_text()
    assert "d (2 questions, d-" in text and "d (3 questions, d-" in text


def test_cell_ids_stay_in_the_directory(tmp_path: Path) -> None:
    assert CellName("../../x", "deeprag,threshold=0.2", "a b", "", 3).id == "_.._x/deeprag,threshold=0.2/a_b/none/3"
    assert CellName("..", "s", "d", "r", 0).id.startswith("none/")


def test_no_password_is_written_to_a_cell(started: FakeEngine, tmp_path: Path) -> None:
    """The addresses of retrievers and rerankers were written with their passwords."""
    config = KitConfig(model="", indexes=[], reranker="https://me:secret@reranker")
    engine = EngineConfig(kind="openai", urls=["https://me:secret@engine"])
    retriever = Fixed(name="service http://me:secret@retriever")
    retrievers = {"r": {"": retriever}}
    asked = {"d": numbered(0)}
    asyncio.run(run_matrix(replace(config, engine=engine), {"a": "m"}, ["rag"], asked, retrievers, tmp_path))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5 and not any(b"secret" in path.read_bytes() for path in files)


def test_writes_tables(started: FakeEngine, tmp_path: Path) -> None:
    evaluate(tmp_path, {"d": numbered(0, 1), "e": numbered(2)}, ["a", "b"], ["cot", "rag", "dualrag"])
    text = (tmp_path / "tables.md").read_text()
    assert text.count("Answers and retrievals") == 2 and "| rag, b | 50.0" in text and "Depth of reasoning" in text
    assert "the text of a module did not parse: dualrag, a (2 of 2), dualrag, b (2 of 2)." in text
    assert r"\begin{tabular}" in (tmp_path / "tables.tex").read_text()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables.csv").read_text())))
    (row,) = [r for r in rows if (r["dataset"], r["model"], r["strategy"], r["measure"]) == ("d", "a", "rag", "em")]
    assert (row["mean"], row["questions"]) == ("0.5", "2")
    cells = {cell.id: cell.summary for cell in load_matrix(tmp_path).cells}
    boundary = cells["a/rag/d/r/0"].cot_boundary
    assert boundary and (boundary.fn, boundary.tn) == (1, 1), "of the chain of thought of the same model"


class Fixedly:
    """A reranker with equal scores."""

    def __init__(self, identity: str):
        self.identity = identity

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [1.0] * len(pairs)


def named(identity: str) -> Fixed:
    """A retriever that differs from others only in its identity: a service, a collection, or an encoder."""
    fixed = Fixed()
    fixed.identity = [identity]
    return fixed


def fused(method: str, weights: list[float] | None = None) -> FusedRetriever:
    return FusedRetriever([Fixed(), Fixed()], method, weights)  # pyrefly: ignore[bad-argument-type]


KINDS = {"sparse": named("a"), "dense": named("b")}
ENGINE = EngineConfig(kind="openai", urls=["http://a:1"])
SETTINGS = {
    "corpus": ({"retrievers": {"": Fixed("c")}}, {"retrievers": {"": Fixed("d")}}),
    "collection": ({"retrievers": {"": named("collection a")}}, {"retrievers": {"": named("collection b")}}),
    "reranker": tuple({"retrievers": {"": RerankedRetriever(Fixed(), Fixedly(name))}} for name in "ab"),
    "depth": tuple({"retrievers": {"": RerankedRetriever(Fixed(), Fixedly("a"), depth)}} for depth in (10, 20)),
    "weights": tuple({"retrievers": {"": fused("weighted", each)}} for each in ([0.99, 0.01], [0.01, 0.99])),
    "method": tuple({"retrievers": {"": fused(method)}} for method in ("rrf", "weighted")),
    "order": ({"retrievers": KINDS}, {"retrievers": dict(reversed(KINDS.items()))}),  # the first is the main one
    "passages": ({}, {"passages": 5}),
    "urls": ({"engine": ENGINE}, {"engine": replace(ENGINE, urls=["http://b:1"])}),
    "thinking": ({}, {"engine": EngineConfig(thinking=False)}),
    "role": ({"roles": {"reader": RoleConfig("m", ENGINE)}}, {"roles": {"reader": RoleConfig("n", ENGINE)}}),
    "instructions": ({}, {"given": False}),
}


@pytest.mark.parametrize("pair", SETTINGS)
def test_two_settings_share_no_answers(started: FakeEngine, tmp_path: Path, pair: str) -> None:
    """Answers were stored by the names of the model and the retriever."""
    first, second = SETTINGS[pair]
    evaluate(tmp_path / "one", {"d": numbered(0)}, strategies=["rag"], **first)
    before = contents(tmp_path)
    setting = pair if pair == "instructions" else "retrievers" if "retrievers" in second else next(iter(second))
    with pytest.raises(UserError, match=f"answered with a different setting '{setting}'; give the model, the"):
        evaluate(tmp_path / "one", {"d": numbered(0)}, strategies=["rag"], **second)
    assert contents(tmp_path) == before and started.models == ["a"]
    (tmp_path / "one/cells").rename(tmp_path / "old cells")
    (tmp_path / "one/matrix.json").unlink()
    evaluate(tmp_path / "one", {"d": numbered(0)}, strategies=["rag"], **second)
    assert len(started.prompts) == 2 and len(list((tmp_path / "one/answers").iterdir())) == 2


def test_a_retriever_without_an_identity_is_refused(started: FakeEngine, tmp_path: Path) -> None:
    class Anonymous(Fixed):
        identity = property()

        def __init__(self):
            self.name = "anonymous"

    with pytest.raises(UserError, match="Anonymous: no identity by which its results could be stored; give the"):
        evaluate(tmp_path, {"d": numbered(0)}, retrievers={"": Anonymous()})


@pytest.mark.parametrize("changed", ["model.safetensors", "chat_template.jinja", "tokenizer.json"])
def test_two_models_at_one_place_share_no_answers(started: FakeEngine, tmp_path: Path, changed: str) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("model.safetensors", "chat_template.jinja", "tokenizer.json", "config.json"):
        (model / name).write_text("{}")
    evaluate(tmp_path / "m", {"d": numbered(0)}, [str(model)])
    (model / changed).write_text('{"changed": 1}')
    with pytest.raises(UserError, match="answered with a different setting 'model'"):
        evaluate(tmp_path / "m", {"d": numbered(0)}, [str(model)])


def test_answers_follow_the_prompts_and_not_their_place(started: FakeEngine, tmp_path: Path) -> None:
    for folder, text in (("a", "Answer as a pirate."), ("b", "Answer as a poet."), ("c", "Answer as a pirate.")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rag.txt").write_text(text)
        (tmp_path / folder / "react.txt").write_text(f"Used by no strategy here, {folder}.")
    for folder in "abc":
        evaluate(
            tmp_path / "all" / folder, {"d": numbered(0)}, strategies=["rag"], given=Instructions(tmp_path / folder)
        )
    answers = [{path.name for path in (tmp_path / "all" / folder / "answers").iterdir()} for folder in "abc"]
    assert answers[0] == answers[2] != answers[1]
    with pytest.raises(UserError, match="answered with a different setting 'code'; give the model, the"):
        evaluate(tmp_path / "all/a", {"d": numbered(0)}, strategies=["rag"], given=Instructions(tmp_path / "b"))
    with pytest.raises(UserError, match="answered with a different setting 'code'; give the model, the"):
        evaluate(tmp_path / "all/a", {"d": numbered(0)}, strategies=["rag"])


def test_a_dry_run_says_which_bounds_only_a_model_reaches_that_never_stops():
    few, many = (
        CellEstimate(cell=f"m/{name}", questions=1, most=STRATEGIES[name].bound) for name in ("rag", "levelrag")
    )
    assert estimate_table({"a": [few]}, (0, 0)).notes == estimate_table({"a": [many]}, (0, 0)).notes[:-1]
    note = "At most, of m/levelrag: thousands of calls for a question, by a model that never stops; max_calls=N "
    assert estimate_table({"a": [few, many]}, (0, 0)).notes[-1].startswith(note)
    assert bound("levelrag,max_calls=40", 3) == (40, 26_400)
