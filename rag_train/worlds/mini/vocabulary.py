"""Extension of the mini model's vocabulary, so that it can learn other formats."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import Qwen2ForCausalLM

from rag_train.llm.checkpoint import load_tokenizer


def with_words(model: Path, texts: Iterable[str], output: Path) -> int:
    """Write the model to ``output`` with every word of ``texts`` in its vocabulary; return the number of new words.

    The embedding of a new word is initialized with that of the same word after a space, or else with the mean
    over its bytes. The same input gives the same model, so that an interrupted training on it can continue.
    """
    tokenizer = load_tokenizer(str(model))
    backend = Tokenizer.from_file(str(model / "tokenizer.json"))
    known = backend.get_vocab()
    words = {word for text in texts for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)}
    new, spare = sorted(words - known.keys()), len(known)
    settings = json.loads(backend.to_str())
    # Include the special tokens: otherwise the tokenizer would renumber them after the words.
    settings["model"]["vocab"] = known | {word: spare + i for i, word in enumerate(new)}
    network = Qwen2ForCausalLM.from_pretrained(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # for the rows that no word takes
        network.resize_token_embeddings(math.ceil((spare + len(new)) / 64) * 64, mean_resizing=False)
    with torch.no_grad():
        table = network.model.embed_tokens.weight
        for i, word in enumerate(new):
            same = known.get(f"\u0120{word}")  # byte-level BPE writes a space as \u0120
            table[spare + i] = (
                table[same] if same else table[[known[byte] for byte in word if byte in known]].mean(0)
            )
    network.save_pretrained(output)
    tokenizer.save_pretrained(output)
    (output / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
    return len(new)
