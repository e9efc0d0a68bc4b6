"""Speed and memory of training, against TRL's trainers (make bench NAME=training).

All contestants train on the same examples with the same settings and precision, in turn, each run in a new process.
The time covers the construction of the trainer (including TRL's packing and ours), the reference log-probabilities
of calibration, and one epoch; it excludes imports, tokenisation and a few steps to warm up.

TRL runs with its best settings. For calibration, the reference is computed before training; TRL 1.16 itself turns
padding-free batches off. For imitation, rows are packed by best fit, at the fastest row length and at ours; without
FlashAttention, transformers masks them by position. All contestants make the same number of optimizer steps, with
about the same number of examples in each. Writes training.json and training.md.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rag_train.eval.benchmarks.harness import (
    CONTROLLER,
    benchmark_parser,
    in_new_process,
    in_turn,
    mini_world,
    process_memory,
    ratio,
    save,
    spread,
)
from rag_train.formats import deeprag
from rag_train.schema import Decision, Passage, PreferencePair, SFTRecord, Step
from rag_train.training.recipe import DPORecipe, SFTRecipe, TrainRecipe

NODES, PASSAGES, WORDS = 4, 5, 100
"""Shape of the papers' trajectories: nodes, passages per node, words per passage."""
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
    """Examples, the model to train on them, and recipe keys that all contestants share."""

    stage: Literal["dpo", "sft"]
    model: Path
    data: Path
    keys: dict[str, Any] = {}  # noqa: RUF012


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--model", default=str(CONTROLLER), help="packaged model, or checkpoint; default: the mini model"
    )
    parser.add_argument("--trajectories", type=int, default=12, help="trajectories of preference pairs")
    parser.add_argument("--examples", type=int, default=400, help="examples of each imitation set")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each contestant on each set")
    options = parser.parse_args()

    from rag_train.table import Table
    from rag_train.worlds.packaged import checkpoint_of

    with tempfile.TemporaryDirectory(prefix="bench-training-") as name:
        work = Path(name)
        sets = training_sets(checkpoint_of(options.model, Path("runs/models")), work, options)
        found = {name: compare(examples, options.repeats, work / name) for name, examples in sets.items()}
    rows = []
    for name, runs in found.items():
        for contestant, own in runs.items():
            row = [f"{name}: {contestant}", spread([run["distinct"] / run["seconds"] for run in own], 0)]
            row += [spread([run["grown"] for run in own]), f"{own[0]['tokens'] / own[0]['distinct']:.2f}"]
            others = [[each["seconds"] for each in runs[of]] for of in (contestant, "tree")]
            rows.append([*row, ratio(*others) if contestant != "tree" else "", f"{own[0]['loss']:.3f}"])
    table = Table(
        title="Training",
        caption=f"{Path(options.model).name}: the same examples, {options.repeats} runs in turn; tokens of shared "
        "prefixes count once. Brackets: the lowest and the highest.",
        columns=[
            "Set",
            "Distinct tokens a second",
            "Memory, GiB",
            "Tokens over distinct",
            "Tree: times as fast",
            "Loss",
        ],
        rows=rows,
    )
    chosen = {name: getattr(options, name) for name in ("model", "trajectories", "examples", "repeats")}
    save(options.output, "training", {"options": chosen, "sets": found}, table)


def training_sets(model: Path, work: Path, options: argparse.Namespace) -> dict[str, TrainingSet]:
    """Return pairs of the papers' shape, trajectories of DeepRAG, and examples of all methods' modules."""
    from rag_train.eval.demo.examples import gold_examples
    from rag_train.jobs.files import write_records
    from rag_train.retrieval.batching import AsyncRetriever
    from rag_train.retrieval.index.bm25 import BM25Index
    from rag_train.worlds.mini.vocabulary import with_words

    world, _ = mini_world()
    retriever = AsyncRetriever(BM25Index.build(world.corpus()))
    questions = world.questions("train")[: max(1, options.examples // 20)]
    made = asyncio.run(gold_examples(questions, retriever, passages=3))
    every = [record for records in made.values() for record in records]
    records = random.Random(0).sample(every, min(options.examples, len(every)))
    if model == CONTROLLER:  # the mini model's vocabulary has the words of its text only
        with_words(model, (record.prompt + record.completion for record in records), work / "extended")
        model = work / "extended"
    write_records(work / "modules.jsonl", records)
    write_records(work / "trajectories.jsonl", trajectories(options.examples, passages=3))
    pairs = shaped(work / "pairs.jsonl", options.trajectories)
    return {
        "calibration": TrainingSet("dpo", model, pairs, {"batch_size": NODES}),
        "trajectories": TrainingSet("sft", model, work / "trajectories.jsonl"),
        "modules": TrainingSet("sft", model, work / "modules.jsonl"),
    }


def compare(examples: TrainingSet, repeats: int, folder: Path) -> dict[str, list[dict[str, float]]]:
    """Run all contestants on a set in turn, and return what each run measured."""
    numbers = itertools.count()
    contestants = {
        name: lambda name=name: in_new_process(measure, examples, name, folder / str(next(numbers)))
        for name in CONTESTANTS[examples.stage]
    }
    return in_turn(contestants, repeats)


def shaped(path: Path, trajectories: int) -> Path:
    """Write preference pairs of random words along chains of ``NODES`` nodes, with passages."""
    from rag_train.jobs.files import write_records

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


def trajectories(count: int, passages: int = 8) -> Iterator[SFTRecord]:
    """Yield trajectories over the mini world's questions in turn, with random decisions and passages.

    ``passages`` is the number of passages of a search; with 8 of them, a trajectory has 330 tokens on average.
    """
    world, questions = mini_world()
    corpus, rng = list(world.corpus()), random.Random(0)
    for number in range(count):
        question = questions[number % len(questions)]
        steps = []
        for hop in question.decomposition:
            decision = rng.choice(list(Decision))
            found = rng.sample(corpus, passages) if decision is Decision.RETRIEVE else []
            steps.append(Step(subquery=hop.subquery, decision=decision, passages=found, answer=hop.answer))
        segments = deeprag.render(steps, question.answers[0])
        yield SFTRecord(
            id=f"{question.id}/{number}",
            prompt=deeprag.question_prompt(question.question),
            completion="".join(segment.text for segment in segments),
            segments=segments,
            source="gold",
        )


def measure(examples: TrainingSet, contestant: str, folder: Path) -> dict[str, float]:
    """Train once, without saving, and return the seconds, the tokens, the loss, and the memory.

    ``grown`` is the increase of the peak memory (the GPU's, if there is one) over the start, in GiB.
    """
    import torch

    from rag_train.llm.checkpoint import load_tokenizer
    from rag_train.training.data import dpo_rows, sft_rows
    from rag_train.training.load import prepare_libraries
    from rag_train.training.tree import lay_out

    prepare_libraries()
    tokenizer = load_tokenizer(str(examples.model))
    rows_of: Any = dpo_rows if examples.stage == "dpo" else sft_rows
    rows, _ = rows_of(examples.data, tokenizer, max_tokens=4096, chat=tokenizer.chat_template is not None)
    if examples.stage == "dpo":
        sequences = [row["prompt_ids"] + row[side] for row in rows for side in ("chosen_ids", "rejected_ids")]
    else:
        sequences = [row["input_ids"] for row in rows]
    distinct = len(lay_out(sequences).ids)
    own = CONTESTANTS[examples.stage][contestant]
    keys: dict[str, Any] = {"precision": "bf16" if torch.cuda.is_available() else "fp32"} | examples.keys
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
    return {
        "seconds": seconds,
        "distinct": distinct,
        "tokens": float(trainer.state.num_input_tokens_seen),
        "grown": _memory() - before,
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
    from rag_train.training.build import build_trainer

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
