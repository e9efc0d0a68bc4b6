"""The plots of a report."""

from __future__ import annotations

import pytest
from support.trajectories import COT, QUESTIONS, RUN

from rag_train.eval.metrics.summary import pool, summarize
from rag_train.eval.report import plots


def test_a_plot_is_one_function_and_draws_the_runs_that_it_is_about(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plots, "PLOTS", [])
    shown: list[list[str]] = []

    @plots.plot("Mine", "Of all.", lambda run: run.strategy == "a", row=0.2)
    def mine(axes, runs, seeds):
        shown.append([run.name for run, _ in runs] + [f"seed {seed.seeds[0]}" for seed in seeds])

    plots.plot("None", "Of no run.", lambda run: False)(mine)
    seeds = [summarize(QUESTIONS, RUN, strategy=name, seed=seed) for name in "ab" for seed in (0, 1)]
    [drawn] = plots.drawn(pool(seeds), seeds)
    assert (drawn.title, drawn.caption, drawn.wide) == ("Mine", "Of all.", False) and drawn.svg.startswith("<svg")
    assert shown == [["a", "seed 0", "seed 1"]]


def test_every_plot_is_drawn_also_without_decisions_of_one_kind():
    run = summarize(QUESTIONS, RUN, strategy="s", cot=COT, known={"fact 0?": True})
    titles = [each.title for each in plots.drawn([run])]
    assert titles == [each.title for each in plots.PLOTS if each.title != "Reliability of the decisions"]
