"""Recipe of an experiment: its world, its model, its stages, and when DeepRAG retrieves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rag_train.data_synth.deeprag.search import SearchConfig
from rag_train.errors import UserError
from rag_train.recipe import Count
from rag_train.training.recipe import LoraRecipe
from rag_train.worlds.mini.settings import PretrainConfig
from rag_train.worlds.mini.world import WorldConfig

MAX_TOKENS = 1024
"""Longest example in tokens; training drops longer ones."""


@dataclass(frozen=True, kw_only=True)
class StageRecipe:
    """Settings of one stage's training; all others have the defaults of `rag_train.training.recipe`."""

    questions: int
    """Training questions from which the stage's data is made."""
    lr: float
    """Peak learning rate."""
    epochs: float
    """Passes over the data."""
    batch_size: int
    """Examples per optimizer step."""
    lora: LoraRecipe | None = None
    """Settings of the adapters to train, which the next stage trains further. null: train all parameters."""
    pack_tokens: int | None = None
    """sft: pack examples into rows of up to this many tokens; null: padded batches."""
    layout: Literal["pairs", "tree"] = "pairs"
    """dpo: how pairs are batched (see `rag_train.training.recipe.DPORecipe`)."""
    beta: float = 0.4
    """dpo: weight of the penalty for departing from the reference model."""
    sft_weight: float = 0.0
    """dpo: weight of an additional imitation loss on the chosen snippet."""
    balance: bool = False
    """dpo: train on equally many pairs for each decision."""


@dataclass(frozen=True, kw_only=True)
class LessonsRecipe(StageRecipe):
    """One training on examples of all methods, and the strategies that are compared before and after it."""

    tokens: Count
    """Tokens of the examples of each method, the same for all."""
    untuned: list[str]
    """Strategies that the starting model answers with, with the methods' instructions in the prompts."""
    tuned: list[str] | None = None
    """Strategies that the trained model answers with, without instructions; null: all."""
    sample: dict[str, Count] = field(default_factory=dict)
    """Smaller numbers of questions, by strategy, for strategies that take many or long calls."""
    passages: Count = 3
    """Passages of a retrieval."""
    max_context: Count = 4096
    """Tokens of the longest prompt and its completion."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Probabilities of retrieving from which DeepRAG retrieves, after each stage.

    0.5 follows the model's own decisions. Other values need no new training; choose among them on dev questions.
    """

    stage1: float = 0.5
    stage2: float = 0.5


@dataclass(frozen=True, kw_only=True)
class MiniWorldRecipe:
    """The mini world: made-up facts, and a model trained from scratch that knows a part of them."""

    world: WorldConfig = field(default_factory=WorldConfig)
    """The world; the demo's seed replaces its seed."""
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    """The mini model's pretraining; the demo's seed replaces its seed."""


@dataclass(frozen=True, kw_only=True)
class AtlasRecipe:
    """The atlas: real facts, and a pretrained model whose knowledge of them is measured."""

    model: str = "smollm2"
    """Starting model: smollm2 (fetched with `rag-train model`), a checkpoint directory, or a Hub name."""
    retrieve_share: float = 0.6
    """Probability that a step of a cold-start example retrieves."""


@dataclass(frozen=True, kw_only=True)
class DemoRecipe:
    """An experiment: DeepRAG's three stages, or one training on lessons of all methods."""

    atlas: AtlasRecipe | None = None
    """Run in the atlas. Exactly one of atlas and miniworld is given."""
    miniworld: MiniWorldRecipe | None = None
    """Run in the mini world."""
    cold_start: StageRecipe | None = None
    """Training on gold decompositions, after which the model writes DeepRAG's transcript, with random decisions."""
    stage1: StageRecipe | None = None
    """Imitation learning."""
    stage2: StageRecipe | None = None
    """Chain of calibration."""
    lessons: LessonsRecipe | None = None
    """In place of the three, in the atlas: every strategy before and after a training on all methods' examples."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    """When DeepRAG retrieves."""
    test_questions: int = 300
    """Multi-hop questions to answer."""
    split: Literal["dev", "test"] = "test"
    """Split of the questions to answer: dev to choose settings, test to report."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """The tree search (DeepRAG, Algorithm 1)."""

    def __post_init__(self) -> None:
        if (self.atlas is None) == (self.miniworld is None):
            raise UserError("demo: give one of the sections atlas and miniworld; write atlas: {} for its defaults")
        given = [stage is not None for stage in (self.cold_start, self.stage1, self.stage2)]
        if any(given) != all(given) or all(given) == (self.lessons is not None):
            raise UserError("demo: give either the sections cold_start, stage1 and stage2, or the section lessons")
        if self.lessons and self.miniworld:
            raise UserError("demo: lessons need the atlas, because the mini model cannot follow instructions")

    @property
    def stages(self) -> tuple[StageRecipe, StageRecipe, StageRecipe]:
        """DeepRAG's stages: the cold start, Stage I and Stage II."""
        assert self.cold_start and self.stage1 and self.stage2, "the recipe has lessons"
        return self.cold_start, self.stage1, self.stage2
