"""Tables of Stage III's comparisons. Each figure is read from a file in ``docs/results``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

from generator.markdown import number, percent, table
from generator.results import RESULTS, across_seeds, counted, demo_groups, differences, load, matthews
from rag_train.eval.benchmarks import credit, frontier
from rag_train.eval.benchmarks.credit import PLAIN, START, TREE
from rag_train.eval.metrics import intervals
from rag_train.eval.metrics.causes import CAUSES
from rag_train.eval.metrics.reliability import Reliability


class FrontierPoint(NamedTuple):
    """A model at one setting, the mean over seeds: a threshold of an earlier model, or a price of Stage III."""

    retrievals: float
    em: float
    setting: float


def frontier_points(name: str) -> tuple[dict[str, list[FrontierPoint]], dict[str, list[FrontierPoint]]]:
    """Return the points of the earlier models by model, and those of Stage III by the model it starts from."""
    earlier: dict[str, list[FrontierPoint]] = defaultdict(list)
    later: dict[str, list[FrontierPoint]] = defaultdict(list)
    for (strategy, stage), runs in demo_groups(name).items():
        em, retrievals = (mean(run[key]["mean"] for run in runs) for key in ("em", "retrievals"))
        if found := re.fullmatch(r"stage 3 from (.+), price (.+)", stage):
            later[found[1]].append(FrontierPoint(retrievals, em, float(found[2])))
        else:
            earlier[stage].append(FrontierPoint(retrievals, em, float(strategy.partition("threshold=")[2])))
    return dict(earlier), dict(later)


def frontier_verdict(name: str) -> str:
    """Return the verdict on the protocol's claim about the frontier, over the seeds of a results file."""
    return frontier.verdict(_by_seed(name))


def frontier_table(name: str) -> str:
    """Return Stage III at each price, and by how much it is above the earlier models at no more retrievals."""
    results, rows = list(load(name)["seeds"].values()), []
    for (_, stage), runs in demo_groups(name).items():
        if stage.startswith("stage 3"):
            above = [each[stage] for result in results for each in result["above"].values() if stage in each]
            rows.append(
                [
                    stage,
                    across_seeds([run["em"]["mean"] for run in runs], 1, 100),
                    across_seeds([run["retrievals"]["mean"] for run in runs], 2),
                    across_seeds(above, 1, 100),
                    ", ".join(f"{100 * value:+.1f}" for value in above),
                    str(sum(stage in result["collapsed"] for result in results)),
                ]
            )
    return table(["model", "EM", "retrievals", "above, points", "above, each seed", "collapsed"], rows, "l")


def stage3_decisions(name: str) -> str:
    """Return the decisions before and after Stage III, as means over seeds."""
    rows = [
        [
            stage,
            number(mean(run["retrievals"]["mean"] for run in runs)),
            number(mean(Reliability.model_validate(run["fact_calibration"]).auroc for run in runs)),
            number(mean(matthews(run["fact_boundary"]) for run in runs)),
        ]
        for stage, runs in _own_decisions(name).items()
    ]
    return table(["model", "retrievals", "AUROC", "MCC"], rows, "l")


def stage3_causes(name: str) -> str:
    """Return the right answers and the causes of the wrong ones, in percent of all answers, as means over seeds."""
    rows = [
        [
            stage,
            percent(mean(run["em"]["mean"] for run in runs)),
            *(percent(mean(counted(run["causes"])[cause] / run["questions"] for run in runs)) for cause in CAUSES),
        ]
        for stage, runs in _own_decisions(name).items()
    ]
    return table(["model", "right", *CAUSES], rows, "l")


def _by_seed(name: str) -> dict[int, dict[str, Any]]:
    """Return the results of each seed."""
    return {int(seed): result for seed, result in load(name)["seeds"].items()}


def _own_decisions(name: str) -> dict[str, list[dict[str, Any]]]:
    """Return the runs of each model that retrieve from a probability of 0.5."""
    return {
        stage: runs
        for (strategy, stage), runs in demo_groups(name).items()
        if strategy in ("deeprag", "deeprag,threshold=0.5")
    }


def credit_verdict(name: str) -> str:
    """Return the verdict on the protocol's claim about credit, over the seeds of a results file."""
    return credit.verdict(_by_seed(name))


def credit_table(name: str) -> str:
    """Return what each way of giving credit reaches and costs."""
    seeds = [result["arms"] for result in load(name)["seeds"].values()]
    rows = []
    for arm in seeds[0]:
        found = [seed[arm] for seed in seeds]

        def cost(key: str, digits: int, scale: float = 1, found: Sequence[dict[str, float]] = found) -> str:
            return number(scale * mean(each[key] for each in found), digits) if key in found[0] else "–"

        rows.append(
            [
                arm,
                *(across_seeds([each[key] for each in found], 3) for key in ("score", "em")),
                across_seeds([each["retrievals"] for each in found], 2),
                *(cost(key, digits) for key, digits in (("steps", 0), ("passes", 1), ("seconds", 0))),
                *(cost(key, 2, 1e-6) for key in ("tokens", "written")),
            ]
        )
    heads = [
        "model",
        "score",
        "EM",
        "retrievals",
        "steps",
        "passes",
        "seconds",
        "tokens, millions",
        "written, millions",
    ]
    return table(heads, rows, "l")


def credit_differences(name: str) -> str:
    """Return the scores of tree credit over those of the other models, with each seed's difference."""
    results, rows = _by_seed(name), []
    for arm in (START, PLAIN):
        values = credit.over(results, TREE, arm)
        rows.append([f"{TREE} over {arm}", across_seeds(values, 3), differences(values)])
    return table(["score", "mean over seeds and 95% interval", "each seed"], rows, "l")


def credit_rates() -> str:
    """Return the scores of the learning rates that were tried on dev seeds, as means over seeds."""
    scores: dict[float, dict[str, float]] = defaultdict(dict)
    for path in RESULTS.glob("bench_credit_dev*.json"):
        found = load(path.stem)
        for arm, rate in ((TREE, found["settings"]["lr"]), (PLAIN, found["settings"]["plain_lr"])):
            scores[rate][arm] = mean(result["arms"][arm]["score"] for result in found["seeds"].values())
    rows = [[f"{rate:g}", *(number(scores[rate].get(arm), 3) for arm in (TREE, PLAIN))] for rate in sorted(scores)]
    return table(["learning rate", f"score, {TREE}", f"score, {PLAIN}"], rows, "r")


class CurvePoint(NamedTuple):
    """The mean reward over seeds at a number of engine tokens, with its 95% interval from three seeds on."""

    tokens: float
    mean: float
    lo: float
    hi: float


def credit_curves(name: str, arm: str, points: int = 24) -> list[CurvePoint]:
    """Return an arm's reward at evenly spaced numbers of engine tokens.

    The reward of a seed at a number of tokens is the mean over the steps of the last sixth of the run before it.
    """
    curves = [result["arms"][arm]["curve"] for result in load(name)["seeds"].values()]
    most = min(curve[-1][0] for curve in curves)
    found = []
    for i in range(points):
        at = most * (i + 1) / points
        rewards = [_reward_before(curve, at, most / 6) for curve in curves]
        if len(rewards) > 2:  # the interval of two seeds is wider than any reward
            over = intervals.across_seeds(rewards)
            found.append(CurvePoint(at, over.mean, over.lo, over.hi))
        else:
            found.append(CurvePoint(at, *[mean(rewards)] * 3))
    return found


def _reward_before(curve: Sequence[tuple[float, float]], tokens: float, window: float) -> float:
    """Return the mean reward of the steps that end in a window before ``tokens``, at least one step."""
    rewards = [reward for so_far, reward in curve if tokens - window < so_far <= tokens]
    return mean(rewards) if rewards else next(reward for so_far, reward in curve if so_far >= tokens)


FUNCTIONS = {
    function.__name__: function
    for function in (
        frontier_verdict,
        frontier_table,
        stage3_decisions,
        stage3_causes,
        credit_verdict,
        credit_table,
        credit_differences,
        credit_rates,
    )
}
"""What a page may call between ``[[=`` and ``=]]``."""
