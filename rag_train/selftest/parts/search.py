"""A tree search of DeepRAG with vLLM."""

from __future__ import annotations

import json

from rag_train.package_files import packaged
from rag_train.selftest.parts.retrieval import BM25, WORLD
from rag_train.selftest.registry import part
from rag_train.selftest.work import CONTROLLER, Work

QUESTIONS, LEAST = 20, 12
"""Questions that are searched, and how many of them have to be solved; of seed 0, 17 are."""


@part("DeepRAG search, vLLM", short=True, after=["world and BM25 index"])
def search(work: Work) -> str:
    """Make training data of Stage I with the small model, and check them."""
    output = work.folder / "search.jsonl"
    work.command(
        *("synth", "deeprag", packaged("recipes/deeprag_synth.yaml")),
        f"questions=[{work.folder / WORLD / 'train.jsonl'}]",
        f"held_out=[{work.folder / WORLD / 'dev.jsonl'}]",
        f"index={work.folder / BM25}",
        f"model={CONTROLLER}",
        f"output={output}",
        f"sample={QUESTIONS}",
        *("instructions=false", "search.max_tokens=256", "search.gold_fallback=false"),
        f"engine={json.dumps({'kind': 'vllm'} | work.engine)}",
    )
    work.command("data", "check", output)
    solved = len(output.read_text(encoding="utf-8").splitlines())
    assert solved >= LEAST, f"only {solved} of {QUESTIONS} questions were solved, usually 17"
    return f"{solved} of {QUESTIONS} questions solved"
