"""A language model that is a random tree: for the order of the search and for parsers only."""

import random

from rag_train.formats import deeprag
from rag_train.llm.base import Completion, Sampling, Usage
from rag_train.schema import Passage


class TreeModel:
    """Ends below each node at random; a leaf is right at random. Decisions are read back from the prompt."""

    name = "tree"
    tokenizer = None

    def __init__(self, seed: int, depth: int = 4):
        self.seed, self.depth = seed, depth
        self.prompts: list[str] = []

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        self.prompts.append(prompt)
        history = prompt.partition("\n")[2]
        if history.endswith(deeprag.INTERMEDIATE):
            text = f" a{len(history)}"
        else:
            path = "".join(s.decision[0] for s in deeprag.parse(history).steps)
            rng = random.Random(f"{self.seed}-{path}")
            if len(path) >= self.depth or rng.random() < 0.3 or history.endswith(deeprag.FINAL):
                answer = "right" if rng.random() < 0.4 else "wrong"
                text = answer if history.endswith(deeprag.FINAL) else f"{deeprag.FINAL} {answer}"
            else:
                text = f"{deeprag.FOLLOW_UP} q{path}?"
        return Completion(text=text, token_ids=(0,), usage=Usage(1, 1), stop="\n")

    async def aclose(self) -> None: ...


class OnePassage:
    name = "one"

    def search(self, queries, k):
        return [[Passage(id="p", title="T", text=query)] for query in queries]
