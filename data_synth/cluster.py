"""Synthesis on a Ray cluster: each shard is a row of a Ray dataset, mapped by the same function as without Ray."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rag_train.errors import UserError, not_installed
from rag_train.jobs.items import Shard, Summary
from rag_train.llm.engines import EngineConfig


def gpus_of(recipe: Any) -> int:
    """Return the GPUs that the engine of a recipe's shard takes: none if a server has the model, or without one."""
    engine: EngineConfig | None = getattr(recipe, "engine", None)
    if engine is None or not getattr(recipe, "model", None):
        return 0
    return engine.gpus


def synthesize_on_ray(
    synthesize: Callable[[Shard], Coroutine[Any, Any, Summary]], shards: int, gpus: int
) -> Summary:
    """Run ``synthesize`` on each of ``shards`` shards on a Ray cluster, and return the summary of all.

    Joins the cluster at ``RAY_ADDRESS``, or starts one on this machine. If the cluster has GPUs, each shard takes
    ``gpus`` of them. All nodes must see the same files under the same paths, because shards write partial files in
    the output's directory. A run that was killed continues from them, and the output equals that of a run without
    Ray.

    Raises UserError if Ray is not installed, or with a shard's message if the shard raised it.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise not_installed(error, "ray") from error

    directory = str(Path.cwd())

    def work(row: dict[str, Any]) -> dict[str, Any]:
        os.chdir(directory)
        try:
            summary = asyncio.run(synthesize(Shard(row["number"], shards)))
        except UserError as error:
            return {"error": str(error), "summary": ""}
        return {"error": "", "summary": json.dumps(asdict(summary))}

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(logging_level=logging.WARNING)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False  # each shard has its own progress bar
    taken = gpus if ray.cluster_resources().get("GPU") else 0
    rows = [{"number": number} for number in range(1, shards + 1)]
    try:
        finished = ray.data.from_items(rows, override_num_blocks=shards).map(work, num_gpus=taken).take_all()
    finally:
        ray.shutdown()
    for row in finished:
        if row["error"]:
            raise UserError(row["error"])
    return min((Summary(**json.loads(row["summary"])) for row in finished), key=lambda summary: summary.remaining)
