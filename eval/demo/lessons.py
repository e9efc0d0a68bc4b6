"""Every strategy on one model, before and after a training on examples of all methods from the same questions."""

from __future__ import annotations

from rag_train.eval.demo.claims import TUNED, UNTUNED
from rag_train.eval.demo.examples import equal_shares, gold_examples
from rag_train.eval.demo.seed import Seed
from rag_train.jobs.files import read_records, write_records
from rag_train.progress import progress, up_to
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.dense import DenseIndex, build_dense
from rag_train.retrieval.index.lucene import LuceneIndex, build_lucene
from rag_train.schema import SFTRecord
from rag_train.strategies.registry import STRATEGIES, parse_strategy
from rag_train.worlds.atlas.knowledge import with_knowledge

STAGES = (UNTUNED, TUNED)
WITHOUT = {
    "levelrag-web": "nothing here is on the web",
    "self-rag": "its reflection tokens are words of its own checkpoint's vocabulary",
    "plan-selfrag": "its reflection tokens are words of its own checkpoint's vocabulary",
    "search-r1": "it is learned by reinforcement, and there are no examples",
    "cot-retrieve": "without instructions its prompts are those of cot-rag",
    "fireact": "without instructions its prompts are those of react",
}
"""Strategies that the tuned model does not answer with, and why."""


async def run(seed: Seed) -> None:
    """Answer with the starting model, train it on the lessons, and answer with the trained model.

    Raises UserError for a strategy that does not exist.
    """
    recipe, world = seed.recipe.lessons, seed.world
    assert recipe
    tuned_strategies = recipe.tuned or [name for name in STRATEGIES if name not in WITHOUT]
    for strategy in (*recipe.untuned, *tuned_strategies):
        parse_strategy(strategy)
    if any(strategy.startswith("levelrag") for strategy in (*recipe.untuned, *tuned_strategies)):
        _index_for_levelrag(seed)
    limits = {"sample": recipe.sample, "passages": recipe.passages}
    async with seed.serving(world.model) as engine:
        await seed.measure(engine)
        lessons = world.training["lessons"]
        known = await world.known(engine, lessons, seed.folder / "lesson_facts.jsonl")
        lessons = with_knowledge(lessons, known)
        cold = await seed.search("cold_start", world.model, engine, lessons)
        instructed = {strategy.partition(",")[0] for strategy in recipe.untuned}
        await seed.answer(engine, UNTUNED, world.model, recipe.untuned, instructed=instructed, **limits)
        tokenizer = engine.tokenizer
    examples = await gold_examples(lessons, seed.retriever, recipe.passages)
    examples["deeprag"] = read_records(cold, SFTRecord)
    drawn, _ = equal_shares(examples, tokenizer, recipe.tokens, seed.number)
    data = seed.folder / "lessons.jsonl"
    write_records(data, drawn)
    tuned = seed.train("sft", recipe, world.model, data, TUNED, "Lessons of all methods", "loss")
    async with seed.serving(tuned) as engine:
        await seed.answer(engine, TUNED, tuned, tuned_strategies, **limits)


def _index_for_levelrag(seed: Seed) -> None:
    """Index the corpus for LevelRAG's searchers, on disk, where later runs find it."""
    store, folder = seed.world.index.passages, seed.work / f"indexes-{seed.world.index.corpus_sha256[:8]}"
    passages = [store[i] for i in range(len(store))]
    if not (folder / "sparse").exists():
        build_lucene(passages, folder / "sparse")
    if not (folder / "dense").exists():
        with progress("encoding passages", len(passages)) as advance:
            build_dense(passages, folder / "dense", progress=up_to(advance))
    seed.retrievers["sparse"] = AsyncRetriever(LuceneIndex.load(folder / "sparse"))
    seed.retrievers["dense"] = AsyncRetriever(DenseIndex.load(folder / "dense"))
