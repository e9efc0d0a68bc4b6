"""Recipe of DeepRAG's training data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import FilePath

from rag_train.data_synth.deeprag.cold_start import ColdStartConfig
from rag_train.data_synth.deeprag.examples import PairVariant
from rag_train.data_synth.deeprag.search import SearchConfig
from rag_train.data_synth.leakage import Leak
from rag_train.llm.engines import EngineConfig
from rag_train.recipe import Count


@dataclass(frozen=True, kw_only=True)
class DeepRAGRecipe:
    """Cold-start, Stage I or Stage II data of DeepRAG."""

    stage: Literal["cold_start", "sft", "pairs", "cot", "cot_retrieve"]
    """cold_start: gold decompositions with random decisions, for models that do not write the format yet; sft: the
    kept trajectories (Stage I, section 3.3); pairs: preference pairs at their nodes (Stage II, section 3.4); cot,
    cot_retrieve: the kept trajectories as chains of thought, alone or after the passages found for the question
    (the baselines CoT* and CoT-Retrieve*, section 4.2)."""
    questions: list[FilePath]
    """Question files, in any format that `rag-train eval` reads."""
    index: str
    """Retriever: an index directory made by `rag-train index`, or any specification that `rag-train eval --index`
    takes, such as rrf(indexes/bm25, indexes/dense)."""
    model: str
    """Model that explores the tree: the base model (or the model after the cold start) for sft, the Stage I model
    for pairs."""
    output: str
    """JSON Lines file to write."""
    sample: Count | None = None
    """Number of questions drawn at random from each file (the paper: 4,000 for sft, 1,000 for pairs); null: all."""
    earlier: list[Count] = field(default_factory=list)
    """Samples of the stages before, drawn from the same files with the same seed: their questions are left out.
    [4000] for pairs after sft with sample 4000."""
    seed: int = 0
    """Seed of the question sample."""
    held_out: list[FilePath] = field(default_factory=list)
    """Question files kept for evaluation; training questions that leak them are rejected."""
    leak: Leak = "text"
    """What counts as a leak. text: the same question, or one that contains the other as a hop; entity: also a
    question that starts from the same entity or shares a hop."""
    instructions: bool = True
    """Begin each prompt with the method's instruction; false for models trained without it."""
    pairs: PairVariant = "optimal"
    """Which preference pairs to make (Table 5)."""
    cold_start: ColdStartConfig = field(default_factory=ColdStartConfig)
    """Settings of the cold-start examples."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """Settings of the tree search."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Engine that serves the model."""
