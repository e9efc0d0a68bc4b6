"""A tokenizer, records and recipes for tests that train a model of a few thousand parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    TrainerCallback,
)

from rag_train.formats import deeprag
from rag_train.schema import Decision, Passage, PreferencePair, SFTRecord, Step
from rag_train.training import build
from rag_train.training.masking import IGNORE
from rag_train.training.recipe import TrainRecipe
from rag_train.training.run import train

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of bytes and a few words that splits text as Qwen2.5 does: a full stop and a line break are
    one token."""
    words = ["Let", "'s", "Ġsearch", "Ġthe", "Ġquestion", "Ġin", "ĠWikipedia"]
    words += ["Follow", "Ġup", "Intermediate", "Ġanswer", ".Ċ", "?Ċ"]
    vocab = {word: i for i, word in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")


TOKENIZER = build_tokenizer()
TEMPLATE = "{% for m in messages %}<u>{{ m.content }}</u>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"


def sft_record(i: int, passages: int = 1) -> SFTRecord:
    steps = [
        Step(subquery=f"Who made film {i}?", decision=Decision.PARAMETRIC, answer=f"Maker {i % 5}"),
        Step(
            subquery="Where?",
            decision=Decision.RETRIEVE,
            passages=[Passage(id="p", title="T", text=f"Born in {i}.")] * passages,
            answer=f"Town {i}",
        ),
    ]
    segments = deeprag.render(steps, f"Town {i}")
    return SFTRecord(
        id=str(i),
        prompt=deeprag.question_prompt(f"Where was the maker of film {i} born?"),
        completion="".join(segment.text for segment in segments),
        segments=segments,
        steps=steps,
        answer=f"Town {i}",
        retrievals=1,
        source="search",
    )


def pair(i: int) -> PreferencePair:
    prompt = deeprag.question_prompt(f"Where was {i} born?")
    known = i % 2 == 0
    chosen, rejected = (deeprag.INTERMEDIATE, deeprag.SEARCH) if known else (deeprag.SEARCH, deeprag.INTERMEDIATE)
    history = deeprag.subquery_line("Is it known?" if known else "Who?")
    return PreferencePair(
        id=str(i), prompt=prompt + history, chosen=chosen, rejected=rejected, history_start=len(prompt), node=0
    )


def write(path: Path, records) -> Path:
    path.write_text("".join(record.model_dump_json() + "\n" for record in records))
    return path


def recipe_in(work: Path, output: Path, **keys: Any) -> TrainRecipe:
    """Return a recipe for the model and data of the fixture ``work``; ``keys`` replace its settings."""
    stage = keys.get("stage", "sft")
    defaults = {"stage": stage, "model": str(work / "model"), "data": work / f"{stage}.jsonl"}
    defaults |= {"output_dir": str(output), "lr": 1e-2, "epochs": 3, "batch_size": 4}
    defaults |= {"precision": "bf16", "logging_steps": 1}
    return TrainRecipe(**(defaults | keys))


def same_weights(first: Path, second: Path) -> bool:
    """Whether the models in two directories have the same file of weights."""
    return (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def stretches(ids: list[int], labels: list[int]) -> list[tuple[bool, str]]:
    """Return a row as alternating (trained, text)."""
    out: list[tuple[bool, list[int]]] = []
    for token, label in zip(ids, labels, strict=True):
        assert label in (IGNORE, token)
        if not out or out[-1][0] != (label != IGNORE):
            out.append((label != IGNORE, []))
        out[-1][1].append(token)
    return [(trained, str(TOKENIZER.decode(tokens))) for trained, tokens in out]


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}


class Killed(BaseException):
    pass


class KillAt(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise Killed


def kill_at(monkeypatch: pytest.MonkeyPatch, recipe: TrainRecipe, step: int) -> None:
    """Train until ``step`` and stop as a killed process does, so that nothing is written after it."""
    with monkeypatch.context() as patch:
        build_trainer = build.build_trainer

        def build_and_kill(*arguments):
            trainer = build_trainer(*arguments)
            trainer.add_callback(KillAt(step))
            return trainer

        patch.setattr(build, "build_trainer", build_and_kill)
        with pytest.raises(Killed):
            train(recipe)
