"""Recipes of the factories that work from gold annotations or from a teacher."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, FilePath

from rag_train.llm.engines import EngineConfig

Count = Annotated[int, Field(gt=0)]


@dataclass(frozen=True, kw_only=True)
class GoldRecipe:
    """Examples of a system's modules from gold annotations (MuSiQue's decompositions, 2Wiki's evidences)."""

    questions: list[FilePath]
    """Question files. From gold annotations, questions without annotated hops are rejected."""
    index: str
    """Index directory made by `rag-train index`: the modules read what is retrieved."""
    output: str
    """JSON Lines file to write."""
    sample: Count | None = None
    """Questions drawn at random from each file; null: all."""
    seed: int = 0
    """Seed of the sample."""
    passages: Count = 5
    """Passages retrieved for each query."""
    instructions: bool = True
    """Begin each prompt with the module's instruction; false for models trained without."""
    held_out: list[FilePath] = field(default_factory=list)
    """Question files kept for evaluation: what leaks from them is rejected."""
    leak: Literal["text", "entity"] = "text"
    """What counts as a leak. text: the same question, or one that asks a hop of it; entity: also one that starts
    from the same entity or shares a hop."""


@dataclass(frozen=True, kw_only=True)
class TeacherRecipe(GoldRecipe):
    """The same from a teacher, where a model is named."""

    model: str | None = None
    """The teacher; null: gold annotations alone."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """What serves the teacher."""


Capability = Literal["reasoner", "entities", "summaries"]


@dataclass(frozen=True, kw_only=True)
class DualRAGRecipe(TeacherRecipe):
    """DualRAG's data (section 3.2): gold annotations, or a teacher's trajectories that end right."""

    capabilities: list[Capability] = field(default_factory=lambda: ["reasoner", "entities", "summaries"])
    """What to write."""
    max_iterations: Count = 5
    """Most rounds of retrieval of a trajectory."""
    judge: bool = False
    """Have the teacher judge answers that match no accepted one exactly, too (appendix D)."""
    reranker: str | None = None
    """Directory of the cross-encoder that links entities; null: entities are the same where their normalised names
    are equal."""
    similarity: Annotated[float, Field(ge=0, le=1)] = 0.9
    """The cross-encoder's score from which two entities are the same."""


@dataclass(frozen=True, kw_only=True)
class RouteSizes:
    """Most router examples of each class (the paper's, section 4.2); null: all there are."""

    straightforward: Count | None = 9741
    """Answered from memory."""
    single_step: Count | None = 50_000
    """One retrieval."""
    compound: Count | None = 50_000
    """Several at the same time."""
    complex: Count | None = 50_000
    """Several one after the other."""


@dataclass(frozen=True, kw_only=True)
class HANRAGRecipe(TeacherRecipe):
    """The Revelator's data (section 4.2, appendix B); the teacher, if there is one, judges relevance."""

    straightforward: list[FilePath] = field(default_factory=list)
    """Question files that need no retrieval, such as CommonsenseQA."""
    single_step: list[FilePath] = field(default_factory=list)
    """Question files that need one retrieval, such as Natural Questions."""
    compound: list[FilePath] = field(default_factory=list)
    """Compound questions, as `rag-train synth compound` writes them."""
    routes: RouteSizes = field(default_factory=RouteSizes)
    """Size of each of the router's classes, drawn at random from all sources."""


@dataclass(frozen=True, kw_only=True)
class PlanRAGRecipe(TeacherRecipe):
    """PlanRAG's data (section 5.4): gold annotations for all modules, or a teacher's plans."""
