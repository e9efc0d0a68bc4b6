"""The comparison of all strategies on a real model: its examples, its question files, and one small run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rag_train.errors import UserError
from rag_train.eval.demo.stages import MAX_TOKENS
from rag_train.eval.real.__main__ import main
from rag_train.eval.real.examples import equal_shares, gold_examples
from rag_train.eval.real.gains import gains_table
from rag_train.eval.real.recipe import RealRecipe
from rag_train.eval.real.run import knowledge_kept, run
from rag_train.eval.real.world import ASKED, TRAIN, open_atlas, open_files
from rag_train.files import write_records
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.llm.vllm import VLLMEngine
from rag_train.recipe import load_recipe
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import GoldStep, Passage, Question
from rag_train.working_files import PACKAGE

SYSTEMS = {"dualrag", "hanrag", "levelrag", "planrag"}


@pytest.mark.slow
def test_every_method_gets_the_same_number_of_tokens(mini_model: Path):
    world = open_atlas("dev", seed=0)
    retriever = AsyncRetriever(BM25Index.build(world.corpus))
    examples = asyncio.run(gold_examples(world.train[:12], retriever, passages=2))
    kept = [record for record in examples["reader"] if "Thought:" in record.completion]
    assert kept and examples["react"] and examples["iterdrag"]  # whole formats were once filtered out
    long = kept[0].model_copy(update={"prompt": "word " * MAX_TOKENS})
    examples["long"] = [long]
    tokenizer = load_tokenizer(str(mini_model))
    drawn, tokens = equal_shares(examples, tokenizer, 2000, seed=0)
    longest = max(len(tokenizer.encode(record.prompt + record.completion)) for record in drawn)
    assert all(tokens[method] >= 2000 for method in SYSTEMS)  # the baselines have fewer examples
    assert max(tokens.values()) < 2000 + longest
    assert len({record.id for record in drawn}) == len(drawn) and "long" not in tokens
    assert equal_shares(examples, tokenizer, 2000, seed=0) == (drawn, tokens)
    for method in SYSTEMS:  # the modules take turns
        tasks = {record.task for record in examples[method]}
        assert len({r.task for r in drawn if r.task in tasks}) >= min(len(tasks), 2)


def test_missing_files_are_named(tmp_path: Path):
    with pytest.raises(UserError, match="no such file"):
        open_files(tmp_path, seed=0)


def test_training_questions_of_the_same_film_are_left_out(tmp_path: Path):
    def about(film: str) -> Question:
        step = GoldStep(subquery=f"Who directed {film}?", answer="Ann", entity=film)
        text = f"Where was the director of {film} born?"
        return Question(id=film, question=text, answers=["Rome"], decomposition=[step])

    films_of = {name: ["Jaws"] for name in ASKED.values()} | {name: ["Jaws", "Alien"] for name in TRAIN}
    for name, films in films_of.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_records(tmp_path / name, map(about, films))
    write_records(tmp_path / "corpus.jsonl", [Passage(id="1", title="Jaws", text="Jaws is a film.")])
    world = open_files(tmp_path, seed=0)
    assert [question.id for question in world.train] == ["Alien", "Alien"]
    assert {name: [question.id for question in asked] for name, asked in world.asked.items()} == {
        name: ["Jaws"] for name in ASKED
    }


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.real
def test_a_finished_run_starts_no_engine(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    overrides = [f"model={smollm2}", "lessons.questions=3", "lessons.pack_tokens=512", "tokens=100"]
    overrides += ["questions=2", "split=dev", "untuned=[direct]", "tuned=[rag]"]
    recipe = load_recipe(RealRecipe, PACKAGE / "recipes/real.yaml", overrides)
    run(recipe, [0], None, tmp_path / "work", tmp_path)
    monkeypatch.delattr(VLLMEngine, "start")
    run(recipe, [0], None, tmp_path / "work", tmp_path / "again")
    [result] = json.loads((tmp_path / "again/real.json").read_text())["seeds"].values()
    rows = result["rows"]
    asked = {(row["model"], row["summary"]["strategy"]): row["summary"]["questions"] for row in rows}
    assert asked == {("untuned", "direct"): 2, ("tuned", "rag"): 2}
    assert result["knowledge"]["facts"] >= 2


def test_gains_are_paired_by_question_and_seed():
    def row(seed: int, model: str, strategy: str, em: dict[str, float], accuracy: float = 0.5) -> dict:
        summary = {"strategy": strategy, "accuracy": {"mean": accuracy}}
        return {"seed": seed, "model": model, "summary": summary, "em": em}

    rows = [
        row(0, "untuned", "deeprag,guided=true", {"a": 0.0, "b": 1.0, "c": 1.0}),
        row(0, "tuned", "deeprag", {"a": 1.0, "b": 1.0}, accuracy=1.0),
        row(1, "untuned", "deeprag,guided=true", {"a": 0.0, "b": 0.0}),
        row(1, "tuned", "deeprag", {"a": 1.0, "b": 0.0}),
        row(0, "tuned", "rag", {"a": 1.0}),
    ]
    [cells] = gains_table(rows).rows
    assert cells[:4] == ["deeprag", "2", "25.0", "75.0"] and cells[4].startswith("+50.0 [")
    assert cells[5:] == ["50.0", "75.0", "+50.0, +50.0"]


@pytest.mark.parametrize(("seeds", "verdicts"), [((30, 31, 32), ["holds", "not claimed"]), ((30, 31), [])])
def test_only_claims_are_judged_when_all_test_seeds_have_been_run(seeds: tuple[int, ...], verdicts: list[str]):
    rows = [
        {
            "seed": seed,
            "model": model,
            "summary": {"strategy": strategy, "accuracy": {"mean": em}},
            "em": dict.fromkeys("abcd", em),
        }
        for seed in seeds
        for model, em in (("untuned", 0.0), ("tuned", 1.0))
        for strategy in ("planrag", "rag")
    ]
    table = gains_table(rows)
    assert [row[8] for row in table.rows if len(row) > 8] == verdicts
    assert [row[4] for row in table.rows] == ["+100.0 –"] * 2  # equal differences have no interval


def test_facts_that_tuning_kept_and_taught_are_counted():
    before = {"a": True, "b": True, "c": False, "d": None}
    after = {"a": True, "b": None, "c": True, "d": True}
    kept = {"facts": 4, "known": 2, "known_then_known": 1, "unknown": 1, "unknown_then_known": 1}
    assert knowledge_kept(before, after) == kept
    assert set(knowledge_kept({}, {}).values()) == {0}


def test_other_seeds_than_the_protocols_need_a_split(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(["--seeds", "0"])
    assert "--seeds 0: not a test seed of protocol.yaml; give some of [30, 31, 32]" in capsys.readouterr().err


def test_all_seeds_ask_the_same_questions():
    first, second = open_atlas("dev", seed=0), open_atlas("dev", seed=1)
    assert first.asked == second.asked
    assert first.train[:50] != second.train[:50]
    assert {len(question.decomposition) for question in first.train} == {1, 2, 3, 4}
