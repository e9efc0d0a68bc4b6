"""The figures of the documentation, drawn as SVG by code."""

from figures import accuracy, reliability, systems, training, world

FIGURES = {
    "accuracy": accuracy.draw,
    "accuracy-atlas": accuracy.draw_atlas,
    "reliability": reliability.draw_reliability,
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
