"""DeepRAG end to end: a cold start, which teaches the format, Stage I (imitation) and Stage II (calibration)."""

from __future__ import annotations

from rag_train.eval.demo.claims import FIRST, LAST
from rag_train.eval.demo.seed import Seed

STAGES = (FIRST, "stage 1", LAST)


async def run(seed: Seed) -> None:
    """Train and evaluate every stage; a search of the model's knowledge boundary makes the data of the last two."""
    recipe, world = seed.recipe, seed.world
    cold_start, stage1, stage2 = recipe.stages
    searching = {"search": recipe.search, "cold_start": world.cold_start}
    async with seed.serving(world.model) as engine:
        await seed.measure(engine)
        records = await seed.search("cold_start", world.model, engine, world.training["cold_start"], **searching)
    cold = seed.train("sft", cold_start, world.model, records, FIRST, "Cold start", "loss")
    async with seed.serving(cold) as engine:
        strategies = [*world.instructed, "direct", "rag", "deeprag,threshold=0.5", "deeprag-retrieve"]
        await seed.answer(engine, FIRST, cold, strategies, instructed=world.instructed)
        records = await seed.search("sft", cold, engine, world.training["stage1"], **searching)
    first = seed.train("sft", stage1, cold, records, STAGES[1], "Stage I, imitation learning", "loss")
    async with seed.serving(first) as engine:
        await seed.answer(engine, STAGES[1], first, [f"deeprag,threshold={recipe.thresholds.stage1}"])
        pairs = await seed.search("pairs", first, engine, world.training["stage2"], **searching)
    title = "Stage II, chain of calibration"
    second = seed.train("dpo", stage2, first, pairs, LAST, title, "loss", "rewards/margins")
    async with seed.serving(second) as engine:
        threshold = f"deeprag,threshold={recipe.thresholds.stage2}"
        await seed.answer(engine, LAST, second, [threshold, "deeprag-retrieve", "deeprag-parametric"])
