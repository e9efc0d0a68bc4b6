"""What the factories' data is worth in the mini world: `make factories`, `results/factories.json`."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2", help="of worlds and models, with commas")
    parser.add_argument("--split", default="test", help="questions to answer: dev to choose, test to report")
    parser.add_argument("--questions", type=int, default=200, help="multi-hop, and as many compound, questions")
    parser.add_argument("--work", type=Path, default=Path("runs/miniature"))
    parser.add_argument("--output", type=Path, default=Path("results"))
    options = parser.parse_args()
    # Not above: vLLM's processes import this module again.
    from eval.factories import Seed, claims
    from eval.miniature import Settings
    from rag_train.progress import console
    from rag_train.provenance import save_result

    settings = Settings(work=options.work, split=options.split, questions=options.questions)
    seeds = [Seed(int(number), settings) for number in options.seeds.split(",")]
    for seed in seeds:
        asyncio.run(seed.run())
    found = claims(seeds)
    for one in found:
        difference = one["difference"]
        verdict = "held" if one["held"] else "not shown"
        interval = f"{difference['mean']:+.3f} [{difference['lo']:+.3f}, {difference['hi']:+.3f}]"
        console.print(f"{one['text']}: {verdict}, {interval} {one['metric']}")
    rows = [
        {
            "seed": seed.number,
            "run": name,
            "n": len(scores),
            "em": sum(s.em for s in scores) / len(scores),
            "compound": sum(s.compound or 0 for s in scores) / len(scores) if name.endswith("compound") else None,
            "rounds": sum(s.rounds for s in scores) / len(scores),
            "retrievals": sum(s.retrievals for s in scores) / len(scores),
        }
        for seed in seeds
        for name, scores in seed.runs.items()
    ]
    for row in rows:
        console.print(json.dumps(row))
    result = {
        "options": {key: str(value) for key, value in vars(options).items()},
        "claims": found,
        "rows": rows,
        "data": {seed.number: seed.counts for seed in seeds},
        "revelators": {
            seed.number: {model: [one.model_dump() for one in some] for model, some in seed.revelators.items()}
            for seed in seeds
        },
    }
    save_result(options.output / "factories.json", result)


if __name__ == "__main__":
    main()
