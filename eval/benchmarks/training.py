"""Speed and memory of training, compared with TRL's trainers (make bench-training).

All contestants train on the same examples with the same settings and precision, in turn, each run in a new process.
The time covers the construction of the trainer (including TRL's packing and ours), the reference log-probabilities
of calibration, and one epoch; it excludes imports, tokenisation and a few steps to warm up.

TRL runs with its best settings. For calibration, the reference is computed before training; TRL 1.16 itself turns
padding-free batches off. For imitation, rows are packed by best fit, at the fastest row length and at ours; without
FlashAttention, transformers masks them by position. All contestants make the same number of optimizer steps, with
about the same number of examples in each.

A GPU, if there is one, is also measured for model FLOPs utilisation. Writes bench_training.json.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from rag_train.eval.benchmarks.common import benchmark_parser, mini_world, process_memory
from rag_train.training.recipe import DPORecipe, SFTRecipe, TrainRecipe

if TYPE_CHECKING:
    from rag_train.miniworld.world import World
    from rag_train.schema import PreferencePair, SFTRecord

T = TypeVar("T")
NODES, PASSAGES, WORDS = 4, 5, 100
"""Shape of the papers' trajectories: nodes, passages per node, words per passage."""
SHORT_PAIRS = 16
"""Pairs of the mini world per batch, as in the demo. In the papers' shape, a batch is one trajectory."""
ROW = 2048
"""Tokens per packed row."""
STEPS = 4
"""Optimizer steps of imitation; few, so that the number of passes in a step can be about the same for all."""
PADDED, PACKED, SHORT = "TRL, padded", f"TRL, packed to {ROW:,}", "TRL, packed to 512"
CONTESTANTS: dict[str, dict[str, dict[str, Any]]] = {
    "dpo": {"TRL": {"dpo": DPORecipe(layout="pairs")}, "tree": {"dpo": DPORecipe(layout="tree")}},
    "sft": {
        PADDED: {},
        PACKED: {"sft": SFTRecipe(pack_tokens=ROW)},
        SHORT: {"sft": SFTRecipe(pack_tokens=512)},
        "tree": {"sft": SFTRecipe(pack_tokens=ROW)},
    },
}
"""Recipe keys of the contestants by stage; our tree layout is last."""


class TrainingSet(NamedTuple):
    """Examples, the model to train on them, recipe keys that all contestants share, and keys for TRL's trainers."""

    stage: Literal["dpo", "sft"]
    model: Path
    data: Path
    keys: dict[str, Any] = {}  # noqa: RUF012
    trl: dict[str, Any] = {}  # noqa: RUF012


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--demo", type=Path, default=None, help="a demo's seed folder (default: the first in runs/demo)"
    )
    parser.add_argument("--trajectories", type=int, default=12, help="trajectories per calibration set")
    parser.add_argument("--examples", type=int, default=400, help="examples per imitation set")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contestant per set")
    options = parser.parse_args()

    import torch

    from rag_train.progress import console
    from rag_train.provenance import save_result

    world, model, _ = mini_world()
    with tempfile.TemporaryDirectory(prefix="bench-training-") as name:
        work = Path(name)
        results = compare(_sets(options, world, model, work), options.repeats, work)
    counts = {name: getattr(options, name) for name in ("trajectories", "examples", "repeats")}
    result = {"options": counts, "sets": results}
    if torch.cuda.is_available():
        from rag_train.eval.benchmarks.utilisation import utilisation

        result["utilisation"] = utilisation()
        console.print(result["utilisation"])
    else:
        console.print("no GPU: skipped model FLOPs utilisation")
    save_result(options.output / "bench_training.json", result)


def _sets(options: argparse.Namespace, world: World, model: Path, work: Path) -> dict[str, TrainingSet]:
    from rag_train.progress import console
    from rag_train.schema import PreferencePair, SFTRecord

    long = shaped(work / "shaped.jsonl", options.trajectories)
    sets = {"calibration, papers' shape": TrainingSet("dpo", model, long, {"batch_size": NODES})}
    demo = options.demo or next(iter(sorted(Path("runs/demo").glob("seed*/pairs.jsonl"))), Path()).parent
    if (demo / "pairs.jsonl").is_file():
        pairs = first(demo / "pairs.jsonl", PreferencePair, work / "pairs.jsonl", 8 * options.trajectories)
        sets["calibration, mini world"] = TrainingSet("dpo", model, pairs, {"batch_size": SHORT_PAIRS})
        sft = first(demo / "sft.jsonl", SFTRecord, work / "sft.jsonl", options.examples)
        sets["DeepRAG trajectories, mini world"] = TrainingSet("sft", model, sft)
    else:
        console.print("no demo in runs/demo: skipped the sets of its pairs and trajectories; run make demo first")
    sets["module lessons, mini world"] = TrainingSet("sft", *lessons(world, model, work, options.examples))
    return sets


def compare(sets: dict[str, TrainingSet], repeats: int, work: Path) -> dict[str, Any]:
    """Run all contestants on each set in turn, print their figures, and return them by set."""
    from rag_train.progress import console

    results = {}
    for name, examples in sets.items():
        runs: dict[str, list[dict[str, float]]] = {contestant: [] for contestant in CONTESTANTS[examples.stage]}
        for i in range(repeats):
            for contestant in runs:
                runs[contestant].append(in_new_process(measure, examples, contestant, work / f"{name} {i}"))
        results[name] = summary(runs)
        for line in table(name, results[name]):
            console.print(line)
    return results


def summary(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return rates and memory of each contestant, and the ratios of the trees to each other contestant, per run."""
    trees = runs["tree"]
    return {
        "units": trees[0]["units"],
        "distinct_tokens": trees[0]["distinct"],
        "contestants": {
            name: {
                "units_per_second": [run["units"] / run["seconds"] for run in own],
                "gib": [run["gib"] for run in own],
                "gib_above_start": [run["grown"] for run in own],
                "tokens": own[0]["tokens"],
                "tokens_over_distinct": own[0]["tokens"] / own[0]["distinct"],
                "tokens_per_second": [run["distinct"] / run["seconds"] for run in own],
                "steps": own[0]["steps"],
                "loss": [run["loss"] for run in own],
            }
            for name, own in runs.items()
        },
        "trees_over": {
            name: {
                "speed": [other["seconds"] / run["seconds"] for run, other in zip(trees, own, strict=True)],
                "memory": [run["grown"] / other["grown"] for run, other in zip(trees, own, strict=True)],
            }
            for name, own in runs.items()
            if name != "tree"
        },
    }


def table(name: str, result: dict[str, Any]) -> list[str]:
    """Return the summary of a set as lines for the console: medians, with lowest and highest values."""

    def span(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    lines = [f"{name}: {result['units']} trajectories or examples, {result['distinct_tokens']:,} distinct tokens"]
    for other, measured in result["contestants"].items():
        lines.append(
            f"  {other}: {span(measured['units_per_second'])} a second, {span(measured['gib_above_start'])} GiB "
            f"above the start, {measured['tokens_over_distinct']:.2f} times the distinct tokens, "
            f"{measured['steps']:.0f} steps, loss {span(measured['loss'])}"
        )
    for other, ratios in result["trees_over"].items():
        lines.append(f"  tree over {other}: speed {span(ratios['speed'])}, memory {span(ratios['memory'])}")
    return lines


def shaped(path: Path, trajectories: int) -> Path:
    """Write preference pairs of random words along chains of ``NODES`` nodes, with passages."""
    from rag_train.files import write_records
    from rag_train.formats import deeprag
    from rag_train.schema import Decision, Passage, PreferencePair, Step

    rng = random.Random(0)
    words = ["film", "person", "city", "country", "director", "star", "spouse", "birthplace", "year", "born"]

    def text(count: int) -> str:
        return " ".join(rng.choice(words) for _ in range(count))

    pairs = []
    for t in range(trajectories):
        head = deeprag.question_prompt(text(15))
        steps: list[Step] = []
        for node in range(NODES):
            subquery = text(8)
            pairs.append(
                PreferencePair(
                    id=f"{t}/{node}",
                    prompt=head + deeprag.text_of(steps) + deeprag.subquery_line(subquery),
                    chosen=deeprag.SEARCH,
                    rejected=deeprag.INTERMEDIATE,
                    history_start=len(head),
                    node=node,
                )
            )
            found = [Passage(id=str(i), title=text(2), text=text(WORDS)) for i in range(PASSAGES)]
            steps.append(Step(subquery=subquery, decision=Decision.RETRIEVE, passages=found, answer=text(6)))
    write_records(path, pairs)
    return path


def first(source: Path, kind: type[PreferencePair] | type[SFTRecord], path: Path, questions: int) -> Path:
    """Copy the records of the first ``questions`` questions of ``source`` to ``path``."""
    from rag_train.files import read_records, write_records

    records = read_records(source, kind)
    chosen = list(dict.fromkeys(_question(record) for record in records))[:questions]
    write_records(path, [record for record in records if _question(record) in chosen])
    return path


def _question(record: PreferencePair | SFTRecord) -> str:
    """Return the id of the question from which a record was made."""
    return record.id.partition("/")[0]


def lessons(world: World, controller: Path, work: Path, examples: int) -> tuple[Path, Path]:
    """Return the controller with the words of all formats, and examples of all methods, about 20 a question."""
    from rag_train.eval.miniworld.lessons import spaced
    from rag_train.eval.real.examples import gold_examples
    from rag_train.files import write_records
    from rag_train.miniworld.vocabulary import with_words
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25 import BM25Index

    retriever = AsyncRetriever(BM25Index.build(world.corpus()))
    questions = world.questions("train")[: max(1, examples // 20)]
    by_method = asyncio.run(gold_examples(questions, retriever, passages=3))
    every = [spaced(record) for records in by_method.values() for record in records]
    records = random.Random(0).sample(every, min(examples, len(every)))
    data, model = work / "lessons.jsonl", work / "extended"
    write_records(data, records)
    with_words(controller, (record.prompt + record.completion for record in records), model)
    return model, data


def in_new_process(run: Callable[..., T], *arguments: Any) -> T:
    """Run a contestant in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, *arguments).result()


def measure(examples: TrainingSet, contestant: str, folder: Path) -> dict[str, float]:
    """Train once, without saving, and return the seconds, the tokens, the loss, and the memory.

    ``units`` are trajectories or examples; ``gib`` is the peak memory (the GPU's, if there is one), and ``grown``
    its increase over the start, both in GiB.
    """
    import torch

    from rag_train.files import read_records
    from rag_train.llm.checkpoint import load_tokenizer
    from rag_train.schema import PreferencePair
    from rag_train.training.data import dpo_rows, sft_rows
    from rag_train.training.run import prepare_libraries
    from rag_train.training.tree import lay_out

    prepare_libraries()
    tokenizer = load_tokenizer(str(examples.model))
    rows_of: Any = dpo_rows if examples.stage == "dpo" else sft_rows
    rows, _ = rows_of(examples.data, tokenizer, max_tokens=4096, chat=tokenizer.chat_template is not None)
    if examples.stage == "dpo":
        sequences = [row["prompt_ids"] + row[side] for row in rows for side in ("chosen_ids", "rejected_ids")]
        units = len({_question(pair) for pair in read_records(examples.data, PreferencePair)})
    else:
        sequences, units = [row["input_ids"] for row in rows], len(rows)
    distinct = len(lay_out(sequences).ids)
    own = CONTESTANTS[examples.stage][contestant]
    keys: dict[str, Any] = {"precision": "bf16" if torch.cuda.is_available() else "fp32"} | examples.keys
    if contestant != "tree":
        keys |= examples.trl
    if examples.stage == "sft":
        tokens = distinct if contestant == "tree" else sum(map(len, sequences))
        keys |= batches(len(sequences), tokens, own["sft"].pack_tokens if "sft" in own else None)
    recipe = TrainRecipe(
        stage=examples.stage,
        model=str(examples.model),
        data=examples.data,
        output_dir=str(folder),
        lr=1e-4,
        epochs=1,
        logging_steps=5,
        save_steps=10**6,
        **own,
        **keys,
    )
    before = _memory(reset=True)
    trainer_of(contestant, recipe, rows.select(range(min(8, len(rows) // 2))), tokenizer, folder / "warm").train()
    start = time.perf_counter()
    trainer = trainer_of(contestant, recipe, rows, tokenizer, folder / "run")
    loss = trainer.train().training_loss
    seconds = time.perf_counter() - start
    peak = _memory()
    return {
        "seconds": seconds,
        "units": units,
        "distinct": distinct,
        "tokens": float(trainer.state.num_input_tokens_seen),
        "gib": peak,
        "grown": peak - before,
        "loss": loss,
        "steps": trainer.state.global_step,
    }


def batches(examples: int, tokens: int, row: int | None) -> dict[str, int]:
    """Return the recipe keys with which an epoch over examples of ``tokens`` in all has about `STEPS` steps.

    A forward pass has a packed row of ``row`` tokens, or without packing as many examples as `ROW` tokens make.
    """
    size = 1 if row else max(1, round(ROW * examples / tokens))
    passes = math.ceil(tokens / row) if row else math.ceil(examples / size)
    return {"batch_size": size, "gradient_accumulation": math.ceil(passes / STEPS)}


def trainer_of(contestant: str, recipe: Any, rows: Any, tokenizer: Any, folder: Path) -> Any:
    """Return this package's trainer for the recipe, or TRL's trainer with packing; it saves nothing."""
    from rag_train.training.run import build_trainer

    if contestant not in (PACKED, SHORT):
        trainer = build_trainer(recipe, rows, tokenizer, folder)
        trainer.args.save_strategy = "no"
        return trainer
    from transformers import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    from rag_train.training.setup import lora_config, trainer_arguments

    arguments = trainer_arguments(recipe, folder) | {"save_strategy": "no"}
    arguments |= {"max_length": recipe.pack_tokens, "pad_to_multiple_of": None}
    trainer = SFTTrainer(
        model=recipe.model,
        args=SFTConfig(**arguments, packing=True, packing_strategy="bfd"),
        train_dataset=rows,
        processing_class=tokenizer,
        peft_config=lora_config(recipe),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _memory(reset: bool = False) -> float:
    """Return the peak memory in GiB since the last reset; after a reset, the memory in use."""
    import torch

    if torch.cuda.is_available():
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated() / 2**30
    if reset:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: resets the peak to the memory in use
    return process_memory("VmHWM") / 2**30


if __name__ == "__main__":
    main()
