"""Methods of making training data: what a method is, and the run that writes a recipe's records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import DirectoryPath, FilePath

from rag_train.data_synth.inputs import check_unique_ids, identifying_settings
from rag_train.data_synth.leakage import Leak, keep_out
from rag_train.formats.instructions import Given, given
from rag_train.jobs.items import WHOLE, Outcome, Shard, Summary, run
from rag_train.recipe import Count
from rag_train.schema import Record


@dataclass(frozen=True, kw_only=True)
class SynthesisRecipe:
    """What all recipes of synthesis have."""

    output: str
    """JSON Lines file to write."""
    seed: int = 0
    """Seed of all that is drawn at random, such as the sample of questions."""
    instructions: bool = True
    """Begin each prompt with the instruction of its method or module; false for models trained without it."""
    prompts: DirectoryPath | None = None
    """Directory of files in place of the package's instructions, by name; null: those of the package. `rag-train
    prompts` lists and copies them."""

    def __post_init__(self) -> None:
        """Read the user's files, so that their mistakes show before a model is opened."""
        _ = self.given

    @cached_property
    def given(self) -> Given:
        """The instructions that prompts begin with."""
        return given("prompts:", self.instructions, self.prompts)


@dataclass(frozen=True, kw_only=True)
class QuestionsRecipe(SynthesisRecipe):
    """What recipes have whose records are made from questions and the passages found for them."""

    questions: list[FilePath]
    """Question files, in any format that `rag-train eval` reads."""
    index: str
    """Retriever: an index directory made by `rag-train index`, or any specification that `rag-train eval --index`
    takes, such as rrf(indexes/bm25, indexes/dense)."""
    sample: Count | None = None
    """Number of questions drawn at random from each file; null: all."""
    held_out: list[FilePath] = field(default_factory=list)
    """Question files kept for evaluation; training questions that leak them are rejected."""
    leak: Leak = "text"
    """What counts as a leak. text: the same question, or one that contains the other as a hop; entity: also a
    question that starts from the same entity or shares a hop."""


R = TypeVar("R", bound=SynthesisRecipe)
T = TypeVar("T", bound=Record)
M = TypeVar("M", bound="Method[Any, Any]")

METHODS: dict[str, type[Method[Any, Any]]] = {}
"""The methods by name, once `rag_train.data_synth.registry` has imported their modules."""


def method(name: str) -> Callable[[type[M]], type[M]]:
    """Register a method under ``name``."""

    def register(cls: type[M]) -> type[M]:
        cls.name = name
        METHODS[name] = cls
        return cls

    return register


class Method(ABC, Generic[R, T]):
    """A way of making training data, with what it needs for one recipe.

    A subclass with the decorator `method`, in a module of `rag_train.data_synth.methods`, is all that it takes. Its
    docstring is what `rag-train synth NAME --help` says; the first line stands in the list of methods.

    Args:
        recipe: the recipe.
        items: what records are made from, one after the other; each has its own id.
        identity: identity of the retriever whose passages the records depend on; None without one.

    Attributes:
        recipe_type: class of the recipes.
        starts: names of recipes in ``recipes/`` to start from.
        remedy: what to do if no record could be made.
    """

    name: ClassVar[str]
    recipe_type: ClassVar[type[SynthesisRecipe]]
    starts: ClassVar[tuple[str, ...]]
    remedy: ClassVar[str] = "check the questions, the index and the model"

    def __init__(self, recipe: R, items: Sequence[T], identity: Any = None):
        self.recipe = recipe
        self.items = items
        self.identity = identity

    @classmethod
    @abstractmethod
    def opened(cls, recipe: R) -> AbstractAsyncContextManager[Self]:
        """Read the recipe's items, open its retriever and models, and close the models on exit.

        Raises UserError for invalid input.
        """

    @abstractmethod
    async def outcome(self, item: T, /) -> Outcome:
        """Make the records of an item. Many items are in progress at the same time."""

    @property
    def label(self) -> str:
        """What the progress bar says."""
        return self.name

    def settings(self) -> dict[str, Any]:
        """Return all that the records depend on besides the items."""
        return {"method": self.name} | identifying_settings(self.recipe, self.identity, type(self))

    def finish(self, summary: Summary) -> None:
        """Write or say what belongs to a method after a run; ``summary.remaining`` items may be left."""

    async def write(self, shard: Shard = WHOLE) -> Summary:
        """Make the records of the items of ``shard``, and write the output when all shards are done.

        Raises UserError if two items have the same id, and as `rag_train.jobs.items.run` does.
        """
        check_unique_ids(self.items)
        recipe, work = self.recipe, self.outcome
        if isinstance(recipe, QuestionsRecipe):
            work = keep_out(recipe.held_out, recipe.leak, work)
        output, settings = Path(recipe.output), self.settings()
        summary = await run(self.items, work, output, settings, label=self.label, shard=shard)
        self.finish(summary)
        return summary


async def synthesize(method: type[Method[R, Any]], recipe: R, shard: Shard = WHOLE) -> Summary:
    """Write the records of a recipe: read its items, open its models, make the records, filter and write them.

    Raises UserError for invalid input.
    """
    async with method.opened(recipe) as opened:
        return await opened.write(shard)
