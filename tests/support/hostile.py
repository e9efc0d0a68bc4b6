"""Models that write nothing, too much or nonsense, and retrievers that return nothing, too much or duplicates."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, Literal, cast, get_args

import torch

from rag_train.formats import deeprag, search_r1
from rag_train.llm.base import LLM, Abilities, Completion, Sampling, TokenLogprob, Usage
from rag_train.llm.transformers import Inspection
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import GoldStep, Passage, Question, Trajectory
from rag_train.strategies.base import Kit
from rag_train.strategies.baselines import auto_rag
from rag_train.strategies.registry import build

ModelKind = Literal["empty", "again", "markers", "cut JSON", "long", "languages", "control", "obedient"]
RetrieverKind = Literal["nothing", "everything", "duplicates"]
MODELS: tuple[ModelKind, ...] = get_args(ModelKind)
RETRIEVERS: tuple[RetrieverKind, ...] = get_args(RetrieverKind)

MARKERS = (
    deeprag.FOLLOW_UP,
    deeprag.SEARCH,
    deeprag.INTERMEDIATE,
    deeprag.FINAL,
    deeprag.CONTEXT,
    deeprag.QUESTION,
    "Thought 1:",
    "Action 1: Search[",
    "Action 2: Finish[",
    "[Retrieval]",
    "[S_Rewritten_Query]",
    "[EOS]",
    "\n",
)
FIXED = {
    "empty": "",
    "again": "Follow up: the same again?\nIntermediate answer: the same again\n",
    "cut JSON": '[{"entity": "a", "queries": ["b", "c',
    "long": "Follow up: again and again? " * 3600,
    "languages": "\u7b54\u6848\uff1f \u0645\u0627 \u0647\u0648\u061f \u041a\u0442\u043e?\u3000\u2028",
    "control": "\x00\x1b[2J\ufeff\ufffd\u202e\r\n\t\x7f{}",
}
ASKED = Question(
    id="q", question="Who was first?", answers=["x"], decomposition=[GoldStep(subquery="s?", answer="x")]
)


class HostileModel:
    """An engine that writes text of one kind, the same for the same seed; it ignores the token limit."""

    name = "hostile"
    abilities = Abilities(attention=True)
    tokenizer: Any = SimpleNamespace(chat_template=None, eos_token=None)

    def __init__(self, kind: ModelKind, seed: int):
        self.kind, self.seed = kind, seed
        self.made = count()

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        await asyncio.sleep(0)
        n = next(self.made)
        text = FIXED.get(self.kind) if self.kind in FIXED else self._text(prompt, sampling, n)
        assert text is not None
        stops = sorted((text.index(stop), stop) for stop in sampling.stop if stop in text)
        text = text[: stops[0][0]] if stops else text
        rng = random.Random(f"{self.seed} {n}")
        words = re.findall(r"\s*\S{1,8}", text)[:64] if sampling.logprobs else []
        tokens = tuple((TokenLogprob(i, word, -10 * rng.random()),) for i, word in enumerate(words))
        return Completion(
            text,
            tuple(range(len(tokens))),
            Usage(len(prompt) // 4, len(text) // 4),
            stop=stops[0][1] if stops else None,
            truncated=not stops and self.kind != "obedient" and rng.random() < 0.5,
            logprobs=tokens,
        )

    def _text(self, prompt: str, sampling: Sampling, n: int) -> str:
        """Return markers in any order, or text that keeps to every format and asks for more."""
        rng = random.Random(f"{self.seed} {n}")
        if self.kind == "markers":
            return " ".join(rng.choices((*MARKERS, f"who {n}?"), k=rng.randrange(12)))
        if sampling.choice:  # the same choice in the same place, so that every path is taken for some seed
            return random.Random(f"{self.seed} {sampling.choice}").choice(sampling.choice)
        if sampling.json_schema:
            return json.dumps(self._plan() if prompt.endswith("DAG:\n") else self._value(sampling.json_schema, n))
        if search_r1.STOPS[0] in sampling.stop:
            return f"<think> more </think> <search> who {n}? </search>"
        return self._line(prompt, n)

    def _line(self, prompt: str, n: int) -> str:
        lead = prompt.rpartition("\n")[2]
        if match := re.match(r"Thought (\d+):", lead):
            action = f"\nAction {match[1]}: Search[{n}]" if self.seed % 2 else ""
            return f" more {action}"
        if lead == deeprag.INTERMEDIATE:
            return f" Who is {n}.\n{deeprag.FOLLOW_UP} who {n}?\n{deeprag.SEARCH}\n"
        if lead == "":
            return f"{deeprag.FOLLOW_UP} {auto_rag.QUERY} who {n}?\n{deeprag.SEARCH}\n"
        return f" Search[who {n}?]" if lead.startswith("Action") else f" Who is {n}."

    def _plan(self) -> list[dict[str, Any]]:
        """Return the largest plan that is followed, with several sinks."""
        ids = [f"Q{i}.{j}" for i in (1, 2) for j in range(1, 7)]
        parents = {f"Q2.{j}": [f"Q1.{j}"] for j in range(1, 7)}
        return [
            {"id": id, "question": f"{id} {id.replace('Q2', '<A1') + '>' if id in parents else ''}?"}
            | {"parents": parents.get(id, [])}
            for id in ids
        ]

    def _value(self, schema_text: str, n: int) -> Any:
        schema = json.loads(schema_text)
        made = count()

        def value(part: dict[str, Any], name: str = "") -> Any:
            if "$ref" in part:
                return value(schema["$defs"][part["$ref"].rpartition("/")[2]])
            if "anyOf" in part:
                return value(part["anyOf"][0])
            match part.get("type"):
                case "object":
                    return {key: value(inner, key) for key, inner in part["properties"].items()}
                case "array":
                    return [value(part["items"]) for _ in range(12)]
                case "boolean":
                    return name == "retrieve"  # go on
            return "" if name == "answer" and self.seed % 2 else f"who {n} {next(made)}?"

        return value(schema)

    async def inspect(self, prompt: str, text: str) -> Inspection:
        """Return the inspection of a model that is uncertain of every word."""
        words = [match.span() for match in re.finditer(r"\S+", text)][:50] or [(0, 0)]
        spans = ((0, len(prompt)), *((len(prompt) + start, len(prompt) + end) for start, end in words))
        tokens = tuple((prompt + text)[start:end] for start, end in spans)
        return Inspection(tokens, 1, spans, (9.0,) * len(words), torch.ones(len(spans), len(spans)))

    async def aclose(self) -> None: ...


class HostileRetriever:
    """An async retriever that returns nothing, hundreds of passages, or the same passage again and again."""

    def __init__(self, kind: RetrieverKind):
        self.kind = kind
        self.queries: list[str] = []

    async def search_all(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.queries += queries
        return [self._found(query, k) for query in queries]

    def _found(self, query: str, k: int) -> list[Passage]:
        if self.kind == "nothing":
            return []
        ids = [0] * k if self.kind == "duplicates" else range(200)
        return [Passage(id=f"{query} {i}", title="\n".join(MARKERS), text=f"{query} {i}") for i in ids]


async def ask(name: str, model: ModelKind, retriever: RetrieverKind, seed: int) -> tuple[Trajectory, int, int]:
    """Answer a question with strategy ``name``; return the trajectory, and the calls and queries that were made."""
    llm, searcher = HostileModel(model, seed), HostileRetriever(retriever)
    front = cast(AsyncRetriever, searcher)
    kinds: dict[str, AsyncRetriever] = dict.fromkeys(("sparse", "dense", "web"), front)
    kit = Kit(cast(LLM, llm), front, passages=3, instructions=False, retrievers=kinds)
    trajectory = await build(name, kit).answer(ASKED)
    return trajectory, next(llm.made), len(searcher.queries)
