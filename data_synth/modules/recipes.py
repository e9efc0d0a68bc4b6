"""Recipes of module examples, from gold annotations or from a teacher."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, FilePath

from rag_train.data_synth.leakage import Leak
from rag_train.llm.engines import EngineConfig
from rag_train.recipe import Count


@dataclass(frozen=True, kw_only=True)
class GoldRecipe:
    """Examples of a system's modules from gold annotations (MuSiQue's decompositions, 2Wiki's evidences)."""

    questions: list[FilePath]
    """Question files. Without a teacher, questions without annotated hops are rejected."""
    index: str
    """Retriever whose passages the modules read: an index directory made by `rag-train index`, or any specification
    that --index of `rag-train eval` takes, such as rrf(indexes/bm25, indexes/dense)."""
    output: str
    """JSON Lines file to write."""
    sample: Count | None = None
    """Number of questions drawn at random from each file; null: all."""
    seed: int = 0
    """Seed of the question sample."""
    passages: Count = 5
    """Number of passages retrieved for each query."""
    instructions: bool = True
    """Begin each prompt with the module's instruction; false for models trained without it."""
    held_out: list[FilePath] = field(default_factory=list)
    """Question files kept for evaluation; training questions that leak them are rejected."""
    leak: Leak = "text"
    """What counts as a leak. text: the same question, or one that contains the other as a hop; entity: also a
    question that starts from the same entity or shares a hop."""


@dataclass(frozen=True, kw_only=True)
class TeacherRecipe(GoldRecipe):
    """Examples of a system's modules from gold annotations or, if a model is given, from a teacher."""

    model: str | None = None
    """The teacher model; null: gold annotations only."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Engine that serves the teacher."""
    max_tokens: Count | None = None
    """Maximum number of tokens of a text that the teacher writes; null: the limit of each kind of text. What the
    limit cuts is rejected."""


Capability = Literal["reasoner", "entities", "summaries"]


@dataclass(frozen=True, kw_only=True)
class DualRAGRecipe(TeacherRecipe):
    """DualRAG's training data (section 3.2), from gold annotations or a teacher's correct trajectories."""

    capabilities: list[Capability] = field(default_factory=lambda: ["reasoner", "entities", "summaries"])
    """Capabilities to write examples of."""
    max_iterations: Count = 5
    """Maximum number of retrieval rounds in a trajectory."""
    judge: bool = False
    """Also accept an answer that matches no accepted one if the judge finds it correct (appendix D): the teacher,
    unless `roles` names another model."""
    roles: list[str] = field(default_factory=list)
    """Models other than the teacher for the roles reasoner, identifier, summarizer and judge, each as --role of
    `rag-train eval` takes it, such as judge=gpt-4o,kind=chat,urls=https://api.openai.com,key=OPENAI_API_KEY."""
    reranker: str | None = None
    """Cross-encoder that reranks the passages of each entity for the teacher: a directory or a Hub name; null: no
    reranking."""
    candidates: Count = 50
    """Number of passages retrieved for each query if they are reranked; `passages` of them are kept."""
    linker: str | None = None
    """Cross-encoder that links entities; null: link entities whose normalised names are equal."""
    similarity: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Lowest cross-encoder score at which two entities are linked."""


@dataclass(frozen=True, kw_only=True)
class RouteSizes:
    """Maximum number of router examples of each class (the paper's, section 4.2); null: no limit."""

    straightforward: Count | None = 9741
    """Questions answered from memory."""
    single_step: Count | None = 50_000
    """Questions that need one retrieval."""
    compound: Count | None = 50_000
    """Questions that need several independent retrievals."""
    complex: Count | None = 50_000
    """Questions that need several retrievals, one after the other."""


@dataclass(frozen=True, kw_only=True)
class HANRAGRecipe(TeacherRecipe):
    """The Revelator's training data (section 4.2, appendix B); a teacher, if given, judges relevance."""

    straightforward: list[FilePath] = field(default_factory=list)
    """Files of questions that need no retrieval, such as CommonsenseQA."""
    single_step: list[FilePath] = field(default_factory=list)
    """Files of questions that need one retrieval, such as Natural Questions."""
    compound: list[FilePath] = field(default_factory=list)
    """Files of compound questions, as `rag-train synth compound` writes them."""
    routed: list[FilePath] = field(default_factory=list)
    """Those of `questions` whose questions and hops feed the router, besides the other files; empty: all. The
    paper's are MuSiQue's."""
    routes: RouteSizes = field(default_factory=RouteSizes)
    """Size of each of the router's classes, drawn at random."""
    relevance: Count | None = 50_000
    """Maximum number of hops with relevance examples (two passages each), drawn at random before a teacher judges
    them; null: all. The paper does not state its number."""


@dataclass(frozen=True, kw_only=True)
class PlanRAGRecipe(TeacherRecipe):
    """PlanRAG's training data (section 5.4): all modules from gold annotations, or plans from a teacher."""
