"""Fake engines and retrievers: recorded answers, constant answers, random trees, and simulated latencies."""

import asyncio
import random
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

from rag_train.formats import deeprag
from rag_train.llm.base import Abilities, Completion, Sampling, TokenLogprob, Usage
from rag_train.schema import Passage

PLAIN = SimpleNamespace(chat_template=None, eos_token=None)
CHAT = SimpleNamespace(
    chat_template="turns",
    eos_token=None,
    apply_chat_template=lambda turns, **_: (
        "".join(f"<{turn['role']}>{turn['content']}" for turn in turns) + "<assistant>"
    ),
)
"""Tokenizers without and with a chat template."""


async def opened(gate: threading.Event, cancelled: threading.Event) -> None:
    """Wait until another thread opens ``gate``; set ``cancelled`` if the task is cancelled before."""
    try:
        while not gate.is_set():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        cancelled.set()
        raise


def completion(text: str, sampling: Sampling) -> Completion:
    """Return ``text`` as an engine's completion, cut at stop strings and token limit, with any log-probabilities.

    A token is up to 8 characters of a word.
    """
    text = text[: min((text.index(stop) for stop in sampling.stop if stop in text), default=len(text))]
    every = re.findall(r"\s*\S{1,8}", text)
    words = every[: sampling.max_tokens]
    tokens = tuple((TokenLogprob(i, word, -0.1),) for i, word in enumerate(words))
    return Completion(
        text if words == every else "".join(words),
        tuple(range(len(words))),
        Usage(1, len(words)),
        truncated=words != every,
        logprobs=tokens if sampling.logprobs else (),
    )


class Replay:
    """An engine with recorded answers by the end of the prompt. A prompt with another end fails the test."""

    name, tokenizer, abilities = "replay", PLAIN, Abilities()

    def __init__(self, answers: dict[str, str]):
        self.answers = answers
        self.asked: list[str] = []

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        self.asked.append(prompt)
        fitting = [text for text in self.answers if prompt.endswith(text)]
        assert fitting, f"no recorded answer for this prompt:\n{prompt}"
        return completion(self.answers[max(fitting, key=len)], sampling)

    async def aclose(self) -> None: ...


class Says:
    """An engine with the same answer to every prompt. ``text`` can also be an error or a function of the prompt."""

    name, tokenizer, abilities = "says", PLAIN, Abilities()

    def __init__(self, text: str | Exception | Callable[[str], str]):
        self.text = text

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        if isinstance(self.text, Exception):
            raise self.text
        return completion(self.text if isinstance(self.text, str) else self.text(prompt), sampling)

    async def aclose(self) -> None: ...


class Cut:
    """An engine that writes what another one writes, each text cut at the limit of tokens."""

    def __init__(self, llm):
        self.llm, self.name, self.tokenizer, self.abilities = llm, llm.name, llm.tokenizer, llm.abilities

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        return replace(await self.llm.complete(prompt, sampling), stop=None, truncated=True)

    def __getattr__(self, name: str):
        return getattr(self.llm, name)


class Found:
    """An async retriever that returns the same passages for every query, after ``seconds`` of the loop's time."""

    identity = "found"

    def __init__(self, passages: Sequence[Passage], seconds: float = 0.0):
        self.passages, self.seconds = list(passages), seconds
        self.queries: list[str] = []

    async def search(self, query: str, k: int) -> list[Passage]:
        self.queries.append(query)
        await asyncio.sleep(self.seconds)
        return self.passages[:k]

    async def search_all(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return list(await asyncio.gather(*(self.search(query, k) for query in queries)))


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a simulated clock: sleeping takes no real time, and latencies add up exactly."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0].when())
        super()._run_once()


def elapsed(work) -> float:
    """Run the coroutine and return its duration in seconds of simulated time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)
        return runner.get_loop().time()


class TreeModel:
    """An engine that writes a random tree of transcripts: nodes end, and leaves are right, at random.

    The path to a node, which seeds its random choices, is parsed from the prompt.
    """

    name = "tree"
    tokenizer = PLAIN
    abilities = Abilities()

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
    """A retriever that returns, for each query, a single passage with the query as its text."""

    identity = "one passage"

    name = "one"

    def search(self, queries, k):
        return [[Passage(id="p", title="T", text=query)] for query in queries]
