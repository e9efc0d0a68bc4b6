"""The README of a working directory: the first commands, with a model that the machine is enough for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rag_train.doctor.machine import Accelerator
from rag_train.doctor.packages import accelerators
from rag_train.jobs.files import write_text
from rag_train.model_presets import LORA, PRESETS, find_preset

SMALLEST = "smollm2-135m"
"""The preset for machines without an accelerator: larger ones take days there, even if they fit."""
USUAL = "qwen2.5-7b"
"""The model of the papers; larger ones are not suggested for a first run."""


@dataclass(frozen=True)
class Choice:
    """A model for the first run, and the number of processes that train it."""

    preset: str
    processes: int


def choose(devices: list[Accelerator]) -> Choice:
    """Return the largest preset, up to `USUAL`, whose adapters the accelerators can train."""
    memory = [device.memory for device in devices if device.memory]
    if not memory:
        return Choice(SMALLEST, 1)
    from rag_train.doctor.capacity import largest

    found = largest(min(memory), len(memory))["lora"] or SMALLEST
    usual = PRESETS[USUAL].parameters()
    return Choice(USUAL if PRESETS[found].parameters() > usual else found, len(memory))


def write_readme(folder: Path) -> Path:
    """Write README.md for this machine into ``folder`` and return its path."""
    write_text(folder / "README.md", readme(accelerators().devices))
    return folder / "README.md"


def readme(devices: list[Accelerator]) -> str:
    """Return the README for a machine with these accelerators, in Markdown."""
    choice = choose(devices)
    hub = find_preset(choice.preset).hub
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    here = f"{len(devices)} accelerators ({names})" if devices else "no accelerator"
    launch = "rag-train train"
    if choice.processes > 1:
        sharded = f"--config_file launch/accelerate/ddp.yaml --num_processes {choice.processes}"
        launch = f"accelerate launch {sharded} -m rag_train.train"
    preset = f"model_preset={choice.preset}{LORA}"
    return f"""\
# A working directory of rag-train

The recipes in this folder are YAML files, each headed by the commands that run it. `launch/` has files for several
GPUs and machines. `key=value` after a recipe replaces one of its keys.

When the folder was written, the machine had {here}; the commands below take {choice.preset}.
`rag-train doctor` says what else it is enough for.

## A first run: DeepRAG

Questions and passages, and an index:

```
rag-train data get hotpotqa data
rag-train data get wikipedia data
rag-train index data/wikipedia/corpus.jsonl indexes/wiki
```

Stage I, training data by tree search and imitation:

```
rag-train synth deeprag recipes/deeprag_synth.yaml model={hub} \\
    'questions=[data/hotpotqa/train.jsonl]' 'held_out=[data/hotpotqa/dev.jsonl]'
{launch} \\
    recipes/deeprag_sft.yaml model={hub} {preset} lr=1e-4
```

Stage II, preferences between memory and search:

```
rag-train synth deeprag recipes/deeprag_synth.yaml model=runs/deeprag/stage1 \\
    'questions=[data/hotpotqa/train.jsonl]' 'held_out=[data/hotpotqa/dev.jsonl]' \\
    stage=pairs sample=1000 'earlier=[4000]' output=runs/deeprag/pairs.jsonl
{launch} \\
    recipes/deeprag_dpo.yaml {preset} lr=5e-6
```

Evaluation:

```
rag-train eval --model {hub} --model stage2=runs/deeprag/stage2 \\
    --questions hotpotqa=data/hotpotqa/dev.jsonl --sample 500 --index indexes/wiki \\
    --strategy rag --strategy deeprag --output runs/eval
rag-train report runs/eval runs/eval.html
```

Before a long step, add `--dry-run` to the command: `synth` and `eval` count calls and tokens; `train` computes
steps, memory, disk and time.
"""
