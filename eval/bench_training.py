"""Calibration as a tree against TRL's trainer: `make bench-training`, `results/bench_training.json`.

Both train on the same pairs with the same settings, from reference log-probabilities to the last step, each run in
a process of its own, in turn. Two sets: pairs shaped like the papers' (4 nodes a trajectory, 5 passages of 100
words at each), and with `--pairs` those of a demo's search.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

NODES, PASSAGES, WORDS = 4, 5, 100
LAYOUTS = ("pairs", "tree")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="default: the shipped mini model")
    parser.add_argument("--pairs", type=Path, default=None, help="pairs.jsonl of a demo's run")
    parser.add_argument("--trajectories", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("results"))
    options = parser.parse_args()

    from rag_train.miniworld.pretrain import PretrainConfig, pretrained
    from rag_train.miniworld.world import World, WorldConfig
    from rag_train.progress import console
    from rag_train.provenance import code_version, machine

    model = options.model or pretrained(World(WorldConfig()), PretrainConfig(), Path("runs/demo/base"))[0]
    work = Path(tempfile.mkdtemp(prefix="bench-training-"))
    sets = {"papers' shape": shaped(work / "shaped.jsonl", options.trajectories)}
    if options.pairs:
        sets["mini world"] = first(options.pairs, work / "mini.jsonl", options.trajectories)
    results = {}
    for name, (data, trajectories, batch) in sets.items():
        runs: dict[str, list[dict[str, float]]] = {layout: [] for layout in LAYOUTS}
        for i in range(options.repeats):
            for layout in LAYOUTS:
                output = work / f"{name}-{layout}-{i}".replace(" ", "_")
                runs[layout].append(alone(str(model), str(data), str(output), layout, batch))
        speed = {layout: [trajectories / run["seconds"] for run in some] for layout, some in runs.items()}
        ratios = [a / b for a, b in zip(speed["tree"], speed["pairs"], strict=True)]
        memory = {layout: max(run["gib"] for run in some) for layout, some in runs.items()}
        results[name] = {
            "trajectories": trajectories,
            "batch": batch,
            "trajectories_per_second": speed,
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "peak_gib": memory,
            "loss": {layout: [run["loss"] for run in some] for layout, some in runs.items()},
            "tokens": {layout: some[0]["tokens"] for layout, some in runs.items()},
        }
        console.print(name, {key: results[name][key] for key in ("ratio", "ratios", "peak_gib", "tokens")})
    result = {"machine": machine(), "code_version": code_version(), "sets": results}
    options.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, default=str) + "\n"
    (options.output / "bench_training.json").write_text(text, encoding="utf-8")


def shaped(path: Path, trajectories: int) -> tuple[Path, int, int]:
    """Pairs along chains of ``NODES`` nodes, passages included, of random words; one trajectory a batch."""
    from rag_train.formats import deeprag
    from rag_train.schema import Decision, Passage, PreferencePair, Step

    rng = random.Random(0)
    words = [
        "film",
        "person",
        "city",
        "country",
        "director",
        "star",
        "spouse",
        "birthplace",
        "release",
        "year",
        "born",
        "critic",
    ]

    def text(count: int) -> str:
        return " ".join(rng.choice(words) for _ in range(count))

    lines = []
    for t in range(trajectories):
        head = deeprag.question_prompt(text(15))
        steps: list[Step] = []
        for node in range(NODES):
            subquery = text(8)
            prompt = head + deeprag.text_of(steps) + deeprag.subquery_line(subquery)
            pair = PreferencePair(
                id=f"{t}/{node}",
                prompt=prompt,
                chosen=deeprag.SEARCH,
                rejected=deeprag.INTERMEDIATE,
                history_start=len(head),
                node=node,
            )
            lines.append(pair.model_dump_json() + "\n")
            found = [Passage(id=str(i), title=text(2), text=text(WORDS)) for i in range(PASSAGES)]
            steps.append(Step(subquery=subquery, decision=Decision.RETRIEVE, passages=found, answer=text(6)))
    path.write_text("".join(lines), encoding="utf-8")
    return path, trajectories, NODES


def first(pairs: Path, path: Path, trajectories: int) -> tuple[Path, int, int]:
    """The pairs of the first ``trajectories`` questions of a file."""
    lines, seen = [], dict[str, None]()
    for line in pairs.read_text(encoding="utf-8").splitlines(keepends=True):
        seen.setdefault(json.loads(line)["id"].partition("/")[0])
        if len(seen) > trajectories:
            break
        lines.append(line)
    path.write_text("".join(lines), encoding="utf-8")
    return path, trajectories, NODES


def alone(*arguments: Any) -> dict[str, float]:
    """`timed` in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(timed, arguments)


def timed(model: str, data: str, output: str, layout: str, batch: int) -> dict[str, float]:
    """Seconds of one epoch, references included, without imports and the model's loading; peak memory in GiB."""
    import trl  # noqa: F401

    from rag_train import train as training
    from rag_train.training.config import TrainRecipe

    recipe = TrainRecipe(
        stage="dpo",
        model=model,
        data=Path(data),
        output_dir=output,
        lr=1e-5,
        epochs=1,
        layout=layout,  # pyright: ignore[reportArgumentType]
        batch_size=batch,
        precision="fp32",
        max_tokens=4096,
        logging_steps=1,
    )
    start = time.perf_counter()
    result = training.train(recipe)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "gib": peak, "loss": result.losses[-1]["loss"], "tokens": result.tokens_seen}


if __name__ == "__main__":
    main()
