"""Recipe of the comparison of all strategies on a real model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rag_train.eval.demo.recipe import StageRecipe
from rag_train.recipe import Count


@dataclass(frozen=True, kw_only=True)
class RealRecipe:
    """Sizes and settings of the comparison."""

    model: str = "smollm2"
    """Starting model: smollm2 (fetched with `rag-train model`), a checkpoint directory, or a Hub name."""
    lessons: StageRecipe
    """Training of the tuned model, on gold examples of all methods from the same questions."""
    tokens: Count
    """Tokens of the examples of each method, the same for all."""
    questions: Count
    """Questions of each set to answer."""
    sample: dict[str, Count] = field(default_factory=dict)
    """Smaller numbers of questions, by strategy, for strategies that take many or long calls."""
    untuned: list[str]
    """Strategies that the untuned model answers with, too, with the methods' instructions in the prompts."""
    tuned: list[str] | None = None
    """Strategies that the tuned model answers with; null: all."""
    passages: Count = 3
    """Passages of a retrieval."""
    split: Literal["dev", "test"] = "test"
    """Split of the atlas' questions: dev to choose settings, test to report."""
    max_context: Count = 4096
    """Tokens of the longest prompt and its completion."""
