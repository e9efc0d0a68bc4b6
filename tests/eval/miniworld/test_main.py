"""The command line: test seeds are run with the protocol's settings only, and are logged."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from rag_train.eval.miniworld import strategies, teacher_data, thresholds
from rag_train.eval.miniworld.__main__ import main
from rag_train.eval.miniworld.lab import Settings
from rag_train.eval.miniworld.thresholds import Row, table
from rag_train.eval.papers import protocol


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that are entered in the log, and the experiments that run."""
    found: list[str] = []

    @contextmanager
    def logged(what: str, seeds: list[int]):
        found.append(f"log {what} {seeds}")
        yield

    async def run(seeds, settings: Settings, output) -> None:
        found.append(f"run {seeds} {settings.split}")

    monkeypatch.setattr(protocol, "logged", logged)
    for experiment in (strategies, teacher_data, thresholds):
        monkeypatch.setattr(experiment, "run", run)
    return found


@pytest.fixture
def agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol has the lab's settings."""
    rules, settings = protocol.load_protocol(), Settings().recorded()
    same = {name: settings[name] for name in rules.settings}
    monkeypatch.setattr(protocol, "load_protocol", lambda: rules.model_copy(update={"settings": same}))


@pytest.mark.usefixtures("agreed")
def test_runs_on_test_seeds_are_logged_and_others_are_not(events: list[str]):
    main(["strategies", "--seed", "20", "--questions", "60"])
    main(["teacher-data", "--seeds", "20,21", "--questions", "60"])
    main(["teacher-data"])
    main(["thresholds"])
    assert events == [
        *("log mini world, strategies [20]", "run 20 test"),
        *("log mini world, teacher-data [20, 21]", "run [20, 21] test"),
        *("run [0, 1, 2] test", "run [0, 10, 11] dev"),
    ]


@pytest.mark.usefixtures("agreed")
@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["strategies", "--seed", "20"], "test seeds are run with questions=60, not 100"),
        (["teacher-data", "--seeds", "0,20"], "--seeds 0: not one of the test seeds"),
        (["thresholds", "--seeds", "20"], "test seeds are run with split=test, not dev"),
    ],
)
def test_test_seeds_with_other_settings_are_refused(
    command: list[str], problem: str, events: list[str], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit, match="2"):
        main(command)
    assert problem in capsys.readouterr().err and not events


def test_of_equally_good_thresholds_the_best_retrieves_less():
    rows = [
        Row("flare", "theta=0.2", [0.2, 0.4], 1.0),
        Row("flare", "theta=0.4", [0.3, 0.5], 2.0),
        Row("flare", "theta=0.6", [0.5, 0.3], 1.5),
        Row("dragin", "threshold=1.0", [0.0, 0.0], 0.0),
    ]
    shown = table(rows).rows
    assert [row[5] for row in shown] == ["", "", "best", "best"]
    assert shown[1] == ["flare", "theta=0.4", "40.0", "30.0, 50.0", "2.00", ""]
