"""Every strategy on the mini world: `make strategies`, `results/strategies.json`.

The mini model is taught the formats of the systems that are made of modules (gold examples of training questions),
and then answers test questions with every strategy over one engine, one retriever and the same questions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the world and the models")
    parser.add_argument("--split", default="test", help="questions to answer: dev to choose, test to report")
    parser.add_argument("--questions", type=int, default=100, help="multi-hop questions to answer")
    parser.add_argument("--lessons", type=int, default=250, help="training questions to make examples of")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--work", type=Path, default=Path("runs/strategies"))
    parser.add_argument("--output", type=Path, default=Path("results"))
    asyncio.run(run(parser.parse_args()))


def taught(world, base: Path, retriever, work: Path, lessons: int, epochs: float, seed: int) -> Path:
    """The model in ``work`` that knows all formats; trained if it is not there yet."""
    from data_synth.miniworld import lessons as make
    from rag_train.miniworld.vocabulary import with_words
    from rag_train.train import train
    from rag_train.training.config import TrainRecipe

    output = work / "taught"
    if not (output / "config.json").exists():
        made = make(world, retriever, questions=lessons, compounds=lessons // 2, repeats=lessons * 6)
        records = asyncio.run(made)
        work.mkdir(parents=True, exist_ok=True)
        data = work / "lessons.jsonl"
        data.write_text("".join(f"{record.model_dump_json()}\n" for record in records), encoding="utf-8")
        with_words(base, (record.prompt + record.completion for record in records), work / "extended")
        train(
            TrainRecipe(
                stage="sft",
                model=str(work / "extended"),
                data=data,
                output_dir=str(output),
                lr=6e-4,
                epochs=epochs,
                batch_size=8,
                seed=seed,
                max_tokens=1024,
                save_steps=500,
                logging_steps=50,
            )
        )
        shutil.rmtree(work / "extended")
    return output


async def run(options: argparse.Namespace) -> None:
    from eval.metrics import score
    from eval.run import evaluate
    from eval.summary import summarize
    from eval.tables import main_table
    from rag_train.llm.transformers import TransformersEngine
    from rag_train.llm.vllm import VLLMEngine
    from rag_train.miniworld.pretrain import PretrainConfig, pretrained
    from rag_train.miniworld.world import World, WorldConfig
    from rag_train.progress import console
    from rag_train.provenance import code_version, machine
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.bm25 import BM25Index
    from rag_train.retrieval.lucene import LuceneIndex
    from rag_train.strategies import STRATEGIES
    from rag_train.strategies.base import Kit

    work = options.work / f"seed{options.seed}"
    world = World(WorldConfig(seed=options.seed))
    base, _ = pretrained(world, PretrainConfig(seed=options.seed), Path("runs/demo/base"))
    index = BM25Index.build(world.corpus())
    model = await asyncio.to_thread(
        taught, world, base, AsyncRetriever(index), work, options.lessons, options.epochs, options.seed
    )
    asked = [q for q in world.questions(options.split) if (q.hops or 0) > 1][: options.questions]
    compounds = world.compounds(options.split, options.questions // 2)
    engine = VLLMEngine.start(str(model), dtype="float32", seed=options.seed, kv_cache_bytes=2**29)
    slow = TransformersEngine.start(str(model))
    retriever, sparse = AsyncRetriever(index), AsyncRetriever(LuceneIndex.build(world.corpus()))
    # Nothing in the mini world is on the web or wants a sentence encoder: the words of a query are its meaning.
    kinds = {"sparse": sparse, "dense": retriever}
    table, rows = [], []
    try:
        for name in STRATEGIES:
            if name == "levelrag-web":
                continue
            kit = Kit(slow if name == "dragin" else engine, retriever, instructions=False, retrievers=kinds)
            sets = {"multi-hop": asked} | ({"compound": compounds} if name in ("hanrag", "adaptive-rag") else {})
            for kind, questions in sets.items():
                settings = {"model": str(model), "split": options.split, "kind": kind}
                got = await evaluate(name, kit, questions, work / f"{name}-{kind}.jsonl", settings)
                summary = summarize(questions, got, strategy=name if kind == "multi-hop" else f"{name} ({kind})")
                table.append(summary)
                modules: dict[str, dict[str, int]] = {}
                for call in (call for trajectory in got for call in trajectory.calls):
                    tokens = modules.setdefault(call.module, {"calls": 0, "read": 0, "written": 0})
                    tokens["calls"] += 1
                    tokens["read"] += call.prompt_tokens
                    tokens["written"] += call.completion_tokens
                n = len(questions)
                rows.append(
                    {
                        "strategy": name,
                        "questions": kind,
                        "n": n,
                        "em": sum(s.em for s in score(questions, got)) / n,
                        "summary": summary.model_dump(mode="json"),
                        "rounds": sum(t.rounds for t in got) / n,
                        "failed": sum(t.error is not None for t in got),
                        "unparsed": sum("did not parse" in note for t in got for note in t.notes.values()) / n,
                        "modules": modules,
                    }
                )
    finally:
        await engine.aclose()
    console.print(main_table(table).rich())
    result: dict[str, Any] = {
        "machine": machine(),
        "code_version": code_version(),
        "seed": options.seed,
        "split": options.split,
        "lessons": options.lessons,
        "epochs": options.epochs,
        "rows": rows,
    }
    options.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, default=str) + "\n"
    (options.output / "strategies.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
