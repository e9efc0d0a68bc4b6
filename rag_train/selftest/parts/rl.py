"""Reinforcement learning with vLLM, to which new weights are sent."""

from __future__ import annotations

import json

from rag_train.selftest.parts.retrieval import BM25, WORLD
from rag_train.selftest.registry import part
from rag_train.selftest.work import CONTROLLER, Work

CLOSE = 0.1
"""Most by which log-probabilities may differ between the engine and the trainer, in nats, on average."""
DIFFERENCE = "sampling/sampling_logp_difference/mean"


@part("GRPO, weights sent to vLLM", short=True, after=["world and BM25 index"])
def grpo(work: Work) -> str:
    """Two steps, at the second of which the engine must have the weights that the first has made."""
    result = work.train(
        "rl",
        f"model={CONTROLLER}",
        f"data={work.folder / WORLD / 'train.jsonl'}",
        f"rl.index={work.folder / BM25}",
        f"output_dir={work.folder / 'rl'}",
        *("steps=2", "epochs=null", "lr=1e-3", "warmup_ratio=0", "lora=null", "save_steps=1000"),
        *("global_batch=16", "batch_size=8", "max_tokens=512"),
        *("rl.group=4", "rl.max_steps=3", "rl.instructions=false", "rl.credit=trajectory"),
    )
    lines = (work.folder / "rl/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [row for row in map(json.loads, lines) if DIFFERENCE in row]
    assert len(steps) == 2, f"{len(steps)} steps of 2"
    far = max(row[DIFFERENCE] for row in steps)
    assert far < CLOSE, f"log-probabilities of engine and trainer differ by {far:.2g} nats on average"
    reward = ", ".join(f"{entry['reward']:.2f}" for entry in result["losses"])
    return f"reward {reward}; engine and trainer differ by {far:.1g} nats"
