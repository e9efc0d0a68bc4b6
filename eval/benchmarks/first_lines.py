"""The time until every command says something (make first-lines).

The commands of the first hour, then all others, once each on the mini world, small, in the same folder; measured as
in first_hour.py. Services are stopped after their first answer, and commands that need vLLM or a download after
their first line; those that need a network or a large model may end with their error. Writes first_lines.json.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

from rag_train.eval.benchmarks.common import CONTROLLER, benchmark_parser, exit_on_user_error
from rag_train.eval.benchmarks.first_hour import Step, first_hour, print_steps, run

TRAIN = "'questions=[train.jsonl]'"
GOLD = f"recipes/gold.yaml {TRAIN} 'held_out=[]' index=index passages=3 instructions=false output=runs"
MODEL = "index=index model=$MODEL engine.kind=transformers"
MINI = "--engine transformers --index index"
DIRECT, RAG, IRCOT = (f"[runs/router/cells/mini/{name}/train/bm25/0.jsonl]" for name in ("direct", "rag", "ircot"))
TO_THE_END = (
    "rag-train strategies",
    "rag-train atlas atlas",
    "rag-train data list",
    "rag-train data view runs/gold.jsonl",
    f"rag-train synth dualrag {GOLD}/dualrag.jsonl",
    f"rag-train synth hanrag {GOLD}/hanrag.jsonl",
    f"rag-train synth levelrag {GOLD}/levelrag.jsonl",
    f"rag-train synth deeprag recipes/deeprag_synth.yaml {MODEL} stage=cold_start {TRAIN} 'held_out=[]' sample=8 "
    "output=runs/cold.jsonl",
    f"rag-train eval --model mini=$MODEL {MINI} --no-instructions --questions train.jsonl --strategy direct "
    "--strategy rag --strategy ircot --output runs/router",
    f"rag-train synth adaptive-rag recipes/adaptive_rag_synth.yaml {TRAIN} 'direct={DIRECT}' 'rag={RAG}' "
    f"'multi={IRCOT}' output=runs/adaptive.jsonl",
    f"rag-train synth uar recipes/uar_synth.yaml {TRAIN} 'direct={DIRECT}' 'timely=[]' 'no_knowledge=[test.jsonl]' "
    "output=runs/uar.jsonl",
    "rag-train sweep sweep.yaml --output runs/sweep",
    "rag-train merge $MODEL runs/sweep/0000 runs/merged",
    "rag-train validate runs/planner runs/gold.jsonl --engine transformers",
    "rag-train score runs/eval/cells/mini/rag/test/bm25/0.jsonl --questions test.jsonl --name other "
    "--output runs/eval",
    "rag-train judge runs/eval --model $MODEL --engine transformers",
    "rag-train export runs/eval exported --format flashrag",
    f"rag-train reproduce deeprag table1 --model base=$MODEL --questions hotpotqa=test.jsonl {MINI} --sample 2",
    "rag-train serve retriever index --port $PORT",
    f"rag-train serve strategy rag --model $MODEL {MINI} --port $PORT",
)
MAY_FAIL = (
    f"rag-train synth compound recipes/compound.yaml {MODEL} 'engine.urls=[]' entities=2 output=runs/pairs.jsonl",
    "rag-train data get bamboogle",
)
TO_THE_FIRST_LINE = ("rag-train demo", "rag-train model smollm2 smollm2")
SWEEP = """program: rag_train/train.py
method: grid
metric: {name: train/loss}
parameters: {lr: {values: [3.0e-4]}}
command: [python, -m, rag_train.train, recipes/planrag_sft.yaml, model=MODEL, data=runs/gold.jsonl,
  lora.merge=false, epochs=1, max_tokens=1024, logging_steps=1, "${args_no_hyphens}"]
"""


def main() -> None:
    parser = benchmark_parser(__doc__)
    options = parser.parse_args()

    from rag_train.provenance import save_result

    with exit_on_user_error(), tempfile.TemporaryDirectory() as folder:
        steps = first_lines(Path(folder))
    print_steps(steps)
    for step in steps:
        step.output = step.output if step.ended == "error" else ""
    save_result(options.output / "first_lines.json", {"steps": [asdict(step) for step in steps]})


def first_lines(folder: Path) -> list[Step]:
    """Run all commands in ``folder``. Raises UserError if a command fails that must not."""
    steps = first_hour(folder)
    (folder / "sweep.yaml").write_text(SWEEP.replace("MODEL", str(CONTROLLER)))
    steps += [run(command, folder) for command in TO_THE_END]
    steps += [run(command, folder, may_fail=True) for command in MAY_FAIL]
    return steps + [run(command, folder, stop=True) for command in TO_THE_FIRST_LINE]


if __name__ == "__main__":
    main()
