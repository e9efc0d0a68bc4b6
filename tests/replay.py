"""Engines that say what they are told to: transcripts of the papers, garbage, and known latencies."""

import asyncio
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace

from rag_train.llm.base import Completion, Sampling, TokenLogprob, Usage
from rag_train.schema import Passage

PLAIN = SimpleNamespace(chat_template=None)


def completion(text: str, sampling: Sampling) -> Completion:
    """As an engine would give it: cut at the stop strings and at the token limit, with log-probabilities if asked
    for; a token is up to 8 characters of a word."""
    text = text[: min((text.index(stop) for stop in sampling.stop if stop in text), default=len(text))]
    words = re.findall(r"\s*\S{1,8}", text)[: sampling.max_tokens]
    text = "".join(words) if len(words) == sampling.max_tokens else text
    tokens = tuple((TokenLogprob(i, word, -0.1),) for i, word in enumerate(words))
    return Completion(
        text, tuple(range(len(words))), Usage(1, len(words)), logprobs=tokens if sampling.logprobs else ()
    )


class Replay:
    """Answers each prompt that ends with one of the given texts; any other prompt fails the test."""

    name, tokenizer = "replay", PLAIN

    def __init__(self, answers: dict[str, str]):
        self.answers = answers
        self.asked: list[str] = []

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        self.asked.append(prompt)
        fitting = [text for text in self.answers if prompt.endswith(text)]
        assert fitting, f"not in the transcript:\n{prompt}"
        return completion(self.answers[max(fitting, key=len)], sampling)

    async def aclose(self) -> None: ...


class Says:
    """Answers everything alike; ``text`` may be an error to raise."""

    name, tokenizer = "says", PLAIN

    def __init__(self, text: str | Exception | Callable[[str], str]):
        self.text = text

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        if isinstance(self.text, Exception):
            raise self.text
        return completion(self.text if isinstance(self.text, str) else self.text(prompt), sampling)

    async def aclose(self) -> None: ...


class Found:
    """An async retriever that finds the same for everything, after ``seconds`` of the loop's time."""

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
    """An event loop in which sleeping takes no time but moves the clock: latencies can be summed exactly."""

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
    """Seconds of virtual time that the coroutine takes."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)
        return runner.get_loop().time()
