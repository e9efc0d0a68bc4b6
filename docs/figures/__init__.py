"""The figures of the documentation, drawn as SVG by code."""

from functools import partial

from generator.results import DEMO

from figures import accuracy, real, reliability, stage3, systems, training, world

FIGURES = {
    "accuracy": accuracy.draw,
    "accuracy-atlas": accuracy.draw_atlas,
    "gains": partial(real.draw_gains, "real"),
    "strategies": partial(real.draw_strategies, "real"),
    "gains-dev": partial(real.draw_gains, "real_dev"),
    "strategies-dev": partial(real.draw_strategies, "real_dev"),
    "gains-files": partial(real.draw_gains, "real_files", None),
    "reliability": partial(reliability.draw_reliability, DEMO),
    "reliability-atlas": partial(reliability.draw_reliability, "atlas"),
    "frontier": partial(stage3.draw_frontier, "bench_frontier"),
    "rewards": partial(stage3.draw_rewards, "bench_credit"),
    "deeprag": systems.deeprag,
    "dualrag": systems.dualrag,
    "hanrag": systems.hanrag,
    "planrag": systems.planrag,
    "levelrag": systems.levelrag,
    "tree-layout": training.tree_layout,
    "pipeline": training.pipeline,
    "mini-world": world.draw,
}
"""Name of a figure -> the function that draws it."""
