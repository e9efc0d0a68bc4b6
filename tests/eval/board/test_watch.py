"""What the board says of runs: written by what writes them, and read while they go on."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.matrices import add_cell, numbered

from rag_train.errors import ServiceError
from rag_train.eval.board.watch import Board, Reader
from rag_train.jobs.files import write_records, write_text
from rag_train.jobs.items import WHOLE, OpenItems, Outcome, Rejected, Shard, run
from rag_train.schema import Question
from rag_train.sweeps.file import Metric, SweepFile
from rag_train.sweeps.study import Trial
from rag_train.training.fit import MetricsFile

ASKED = [Question(id=str(i), question=f"question {i}", answers=[f"answer {i}"]) for i in range(6)]


class Watched:
    """A reader of a board that is read anew each time."""

    def __init__(self, root: Path):
        self._board, self._reader = Board(root, every=0.0), Reader()

    def news(self) -> dict[str, Any]:
        return self._board.news(self._reader)

    def card(self, kind: str) -> dict[str, Any]:
        """The card of the only run of this kind."""
        (card,) = (run["card"] for run in self.news()["runs"] if run["card"]["kind"] == kind)
        return card


def log(metrics: MetricsFile, step: int, **values: float) -> None:
    metrics.on_log(None, SimpleNamespace(global_step=step), None, values)


def test_a_training_is_followed_and_only_what_is_new_is_told(tmp_path: Path):
    folder = tmp_path / "stage1"
    write_text(folder / "run.json", json.dumps({"recipe": {"stage": "sft", "model": "m", "epochs": 2}}))
    metrics = MetricsFile(folder / "metrics.jsonl", 0)
    log(metrics, 1, loss=2.0, epoch=0.5, train_runtime=10.0)
    log(metrics, 2, loss=float("nan"), eval_loss=1.5, epoch=1.0, train_runtime=20.0)
    watched = Watched(tmp_path)
    (run,) = watched.news()["runs"]
    assert run["rows"] == [{"run": "", "step": 1, "loss": 2.0}, {"run": "", "step": 2, "eval_loss": 1.5}]
    assert (run["card"]["name"], run["card"]["share"], run["card"]["finished"]) == ("stage1", 0.5, False)
    assert run["card"]["facts"]["Time left"] == "about 20 s"
    assert watched.news() == {}

    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    (run,) = watched.news()["runs"]
    assert "rows" not in run and run["card"]["problems"] == []
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('ss": 1.0}\n')
    (run,) = watched.news()["runs"]
    assert run["rows"] == [{"run": "", "step": 3, "loss": 1.0}] and "restart" not in run

    MetricsFile(folder / "metrics.jsonl", 1)  # a killed run, continued from step 1
    (run,) = watched.news()["runs"]
    assert run["restart"] and [row["step"] for row in run["rows"]] == [1]
    write_text(folder / "evaluations.jsonl", json.dumps({"step": 1, "em": 0.25, "retrievals": 2.0}) + "\n")
    write_text(folder / "training.json", json.dumps({"seconds": 30.0, "kept_step": 1}))
    (run,) = watched.news()["runs"]
    assert run["rows"] == [{"run": "checkpoints", "step": 1, "em": 0.25, "retrievals": 2.0}]
    assert run["card"]["finished"] and run["card"]["facts"]["Weights kept"] == "step 1"
    for path in folder.iterdir():
        path.unlink()
    assert watched.news() == {"gone": [run["id"]]}


def test_reinforcement_learning_has_curves_of_reward_and_decisions(tmp_path: Path):
    metrics = MetricsFile(tmp_path / "rl/metrics.jsonl", 0)
    write_text(tmp_path / "rl/run.json", "{}")
    logged = {"reward": 0.25, "decisions/retrieve": 0.75}
    log(metrics, 1, entropy=1.0, **logged)
    (run,) = Watched(tmp_path).news()["runs"]
    assert run["rows"] == [{"run": "", "step": 1} | logged]
    assert run["card"]["line"] == "step 1, reward 0.2500, decisions to retrieve 0.7500"


def test_broken_files_are_named_and_stop_nothing(tmp_path: Path):
    for name, text in (("list", "[1]"), ("text", '{"recipe": 1}'), ("half", "{")):
        write_text(tmp_path / name / "run.json", text)
        write_text(tmp_path / name / "metrics.jsonl", '{"step": 1, "loss": 2}\n{"loss": 3}\nnonsense\n')
    write_text(tmp_path / "eval/matrix.json", "{}x")
    write_text(tmp_path / "sweep/sweep.json", "{")
    (tmp_path / "folder/run.json").mkdir(parents=True)
    write_text(tmp_path / "folder/metrics.jsonl", '{"step": 1, "loss": 2}\n')
    write_text(tmp_path / "data.jsonl.partial", '{"item": 1}\n')
    write_text(tmp_path / "known.jsonl", "")
    write_text(tmp_path / "known.jsonl.meta.json", '{"items": NaN}')
    runs = Watched(tmp_path).news()["runs"]
    problems = {run["card"]["name"]: run["card"]["problems"] for run in runs}
    line = "metrics.jsonl, line 2: not a record of rag-train; the line is left out"
    assert problems["half"] == ["run.json: not valid JSON", line]
    assert problems["list"] == ["run.json: not a JSON object", line]
    assert problems["folder"] == ["run.json: Is a directory"]
    assert "cannot be read" in problems["text"][0]
    assert "not an evaluation matrix" in problems["eval"][0]
    assert "cannot be read" in problems["known.jsonl"][0]
    assert problems["sweep"] == ["sweep.json: not valid JSON"]
    assert problems["data.jsonl"][0].startswith("data.jsonl.partial, line 1")
    assert all(run["rows"] for run in runs if run["card"]["kind"] == "training")


async def work(item: Question) -> Outcome:
    number = int(item.id)
    if number == 2:
        raise ServiceError("the engine is down")
    rejected = [Rejected(id=item.id, reason="no hops", text=item.question)] if number == 4 else []
    counts = {"prompt_tokens": 10, "completion_tokens": 1}
    return Outcome([] if rejected else [item], counts, rejected)


async def easy(item: Question) -> Outcome:
    return Outcome([item], {"prompt_tokens": 5})


def synthesize(output: Path, settings: dict[str, Any], shard: Shard = WHOLE, work=work) -> None:
    with suppress(OpenItems):
        asyncio.run(run(ASKED, work, output, settings, label="t", shard=shard))


def test_a_synthesis_counts_done_open_and_rejected_items_of_all_shards(tmp_path: Path):
    settings = {"stage": "sft", "model": "m", "output": "data.jsonl", "index": "wiki", "held_out": ["dev.json"]}
    synthesize(tmp_path / "data.jsonl", settings, Shard(1, 2))
    watched = Watched(tmp_path)
    card = watched.card("synthesis")
    (progress,) = card["progress"]
    assert (progress["done"], progress["of"], progress["open"]) == (2, 6, 1)
    assert (progress["rejected"], progress["read"], progress["written"]) == ({"no hops": 1}, 20, 2)
    assert card["line"] == "2 of 6 done, 1 record, 1 rejected, 1 open" and not card["finished"]
    assert card["records"] == [("0", "", "question 0")]
    assert card["rejections"] == [("4", "no hops", "question 4"), ("item 2", "open", "the engine is down")]

    synthesize(tmp_path / "data.jsonl", settings, Shard(2, 2), easy)
    assert watched.card("synthesis")["progress"][0]["done"] == 5
    synthesize(tmp_path / "data.jsonl", settings, work=easy)
    write_text(tmp_path / "m/run.json", json.dumps({"recipe": {"data": "data.jsonl"}}))
    write_text(tmp_path / "m/metrics.jsonl", "")
    write_text(tmp_path / "m/training.json", json.dumps({"seconds": 1.0}))
    cards = {run["card"]["kind"]: run["card"] for run in watched.news()["runs"]}
    done = cards["synthesis"]
    assert done["finished"] and done["share"] == 1.0 and done["links"] == [("Records", "records/data.jsonl")]
    assert "recipes/deeprag_sft.yaml" in done["commands"][0].text
    assert "--questions dev.json --index wiki --strategy deeprag" in cards["training"]["commands"][0].text


def test_an_evaluation_shows_its_answers_and_links_to_its_report(tmp_path: Path):
    write_records(tmp_path / "eval/answers/key/batch.questions.jsonl", ASKED)
    synthesize(tmp_path / "eval/answers/key/batch.jsonl", {"strategy": "rag"})
    watched = Watched(tmp_path)
    card = watched.card("evaluation")
    assert (card["progress"][0]["done"], card["progress"][0]["of"], card["links"]) == (5, 6, [])
    synthesize(tmp_path / "eval/answers/key/batch.jsonl", {"strategy": "rag"}, work=easy)
    add_cell(tmp_path / "eval", "model", numbered(1, 2), ["yes", "no"])
    news = watched.news()
    (card,) = (run["card"] for run in news["runs"])
    assert card["finished"] and card["line"] == "1 cell, 1 set of answers"
    assert card["progress"][0]["name"] == "rag" and card["links"] == [("Report", "report/eval")]


def test_a_sweep_overlays_its_trials_and_names_the_best(tmp_path: Path):
    metric = Metric(name="eval/accuracy", goal="maximize")
    sweep = SweepFile(method="grid", metric=metric, parameters={"lr": {"values": [1, 2, 3]}}, command=[])
    write_text(tmp_path / "s/sweep.json", json.dumps({"sweep": asdict(sweep), "recipe": {}}))
    trials = [Trial(0, {"lr": 1}, "finished", 0.5), Trial(1, {"lr": 2}, "finished", 0.75)]
    trials += [Trial(2, {"lr": 3}, "failed", error="out of memory"), Trial(3, {"lr": 3})]
    for trial in trials:
        folder = tmp_path / f"s/{trial.number:04d}"
        write_text(folder / "trial.json", json.dumps(asdict(trial)))
        write_text(folder / "metrics.jsonl", json.dumps({"step": 1, "loss": trial.number}) + "\n")
    write_text(tmp_path / "s/sweep.html", "")
    (run,) = Watched(tmp_path).news()["runs"]
    assert [row["run"] for row in run["rows"]] == ["0000", "0001", "0002", "0003"]
    assert run["card"]["best"] == "0001" and run["card"]["facts"]["Best"] == "0.75 in trial 0001: lr=2"
    assert run["card"]["line"] == "1 failed, 2 finished, 1 running; best 0.75" and not run["card"]["finished"]
    assert run["card"]["problems"] == ["trial 0002: out of memory"]
    assert run["card"]["links"] == [("Page of the sweep", "page/s/sweep.html")]
    (run,) = Watched(tmp_path / "s").news()["runs"]
    assert run["card"]["links"] == [("Page of the sweep", "page/sweep.html")]


def test_readers_are_told_independently_and_pages_are_listed(tmp_path: Path):
    write_text(tmp_path / "demo/demo.html", "")
    write_text(tmp_path / ".hidden/page.html", "")
    write_text(tmp_path / "run/metrics.jsonl", '{"step": 1, "loss": 1}\n')
    write_text(tmp_path / "run/checkpoints/page.html", "")
    board, early, late = Board(tmp_path, every=0.0), Reader(), Reader()
    assert board.news(early)["pages"] == ["demo/demo.html"]
    assert board.news(early) == {}
    (run,) = board.news(late)["runs"]
    assert len(run["rows"]) == 1
