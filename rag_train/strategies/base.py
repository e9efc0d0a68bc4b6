"""What all inference strategies share: what they work with, and the way of one question through one of them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from rag_train.formats import reader
from rag_train.formats.deeprag import FINAL, one_line
from rag_train.formats.prompting import as_turn, instruction
from rag_train.formats.tasks import Fields, Task
from rag_train.llm.base import LLM, Completion, Sampling
from rag_train.llm.memo import CallLog, path
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Decision, LLMCall, Passage, Question, Step, Trajectory

if TYPE_CHECKING:
    from rag_train.retrieval.rerank import Reranker  # which needs an extra

T = TypeVar("T")

watcher: ContextVar[Callable[[str, Any], None] | None] = ContextVar("watcher", default=None)
"""Where it is set around `Strategy.answer`, it is told of what happens as it does: ("step", Step) when one is done,
("plan", Plan) when there is one, ("outline", dict) when it has grown."""


class Ask(NamedTuple):
    """What a module was asked, and its answer; None where that did not parse."""

    task: Task
    fields: Fields
    answer: Any


asked: ContextVar[list[Ask | None] | None] = ContextVar("asked", default=None)
"""Where it is set around `Strategy.answer`, it collects what the modules are asked, in the order of asking; None
stands for what was never answered."""


@dataclass(frozen=True)
class Kit:
    """What a strategy works with.

    Attributes:
        llm: the model; ``models`` has others by role (``revelator``, ``planner``, ``classifier``).
        retriever: where passages come from; ``retrievers`` has others by kind (``sparse``, ``dense``, ``web``).
        passages: how many are retrieved for a query.
        instructions: whether prompts begin with the instruction in ``prompts/``; models trained without one need
            none.
        reranker: scores passages where the method reranks; None leaves that out.
    """

    llm: LLM
    retriever: AsyncRetriever
    passages: int = 3
    instructions: bool = True
    models: Mapping[str, LLM] = field(default_factory=dict)
    retrievers: Mapping[str, AsyncRetriever] = field(default_factory=dict)
    reranker: Reranker | None = None


@dataclass(frozen=True)
class Strategy(ABC):
    """Answers one question at a time; run many at once, the engine and the retriever batch them.

    ``name`` is what it was asked for by, settings included.
    """

    paper: ClassVar[str] = ""
    """Where the method is from, with the section."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What it needs beside a model and a retriever."""

    kit: Kit
    _: KW_ONLY
    name: str = ""

    @abstractmethod
    async def answer(self, question: Question) -> Trajectory:
        """Raises ValueError if a prompt outgrows the model's context, EngineError if a call fails for good."""


class Run:
    """One question on its way through a strategy: it makes the calls, keeps the steps, and becomes a trajectory."""

    def __init__(self, strategy: Strategy, question: Question):
        self.kit = strategy.kit
        self.question = question
        self.strategy = strategy.name
        self.steps: list[Step] = []
        self.notes: dict[str, str] = {}
        self.calls: list[LLMCall] = []
        self._logs: dict[str, CallLog] = {}

    def log(self, role: str = "") -> CallLog:
        """The engine for ``role``: the kit's model of that role, or else its main one."""
        role = role if role in self.kit.models else ""
        if role not in self._logs:
            self._logs[role] = CallLog(self.kit.models[role] if role else self.kit.llm, self.calls)
        return self._logs[role]

    def prompt(self, name: str, body: str, lead: str = "", role: str = "") -> str:
        """Instruction ``name`` and ``body`` as the user's turn, ``lead`` as the beginning of the answer."""
        head = f"{instruction(name)}\n\n" if self.kit.instructions else ""
        llm = self.kit.models.get(role, self.kit.llm)
        return as_turn(llm.tokenizer, head + body) + lead

    async def complete(self, module: str, prompt: str, sampling: Sampling, role: str = "") -> Completion:
        return await self.log(role).complete(module, prompt, sampling)

    async def ask(self, task: Task, fields: Fields, role: str = "") -> Any:
        """The task's answer, of the task's type; None where the model's text does not parse, which is noted."""
        collected = asked.get()
        asks = [] if collected is None else collected
        place = len(asks)
        asks.append(None)
        prompt = self.prompt(task.name, task.body(fields), task.lead, role)
        text = (await self.complete(task.name, prompt, task.sampling(), role)).text
        answer = task.parse(text)
        if answer is None:
            self.notes[task.name] = f"did not parse: {one_line(text)[:80]!r}"
        asks[place] = Ask(task, fields, answer)
        return answer

    async def read(
        self, question: str, passages: Sequence[Passage] = (), *, name: str = "", reason: bool = False
    ) -> tuple[str, str | None]:
        """(reasoning, answer) of the model given passages, in one call (`formats.reader`).

        ``name`` is the instruction's; if not given, that of direct answering, reading or chain of thought.
        """
        name = name or ("cot" if reason else "rag" if passages else "direct")
        marker = reader.THOUGHT if reason else FINAL
        body = reader.prompt(question, passages, reason=reason).removesuffix(marker)
        sampling = Sampling(max_tokens=256 if reason else 64, stop=() if reason else ("\n",))
        text = (await self.complete("reader", self.prompt(name, body, marker), sampling)).text
        return reader.parse(text if reason else FINAL + text)

    async def search(self, query: str, k: int | None = None, kind: str = "") -> list[Passage]:
        """Passages for ``query``; an empty one finds nothing."""
        query = one_line(query)
        retriever = self.kit.retrievers.get(kind, self.kit.retriever)
        return await retriever.search(query, k or self.kit.passages) if query else []

    async def search_all(self, queries: Sequence[str], k: int | None = None, kind: str = "") -> list[Passage]:
        """The passages of all queries, each once, best ranks first."""
        queries = [q for q in dict.fromkeys(map(one_line, queries)) if q]
        retriever = self.kit.retrievers.get(kind, self.kit.retriever)
        return interleave(await retriever.search_all(queries, k or self.kit.passages))

    def add(self, step: Step) -> Step:
        self.steps.append(step)
        self.show("step", step)
        return step

    def show(self, kind: str, what: Any) -> None:
        """Tells the watcher, if there is one."""
        if watch := watcher.get():
            watch(kind, what)

    def retrieved(self, subquery: str, passages: Sequence[Passage], answer: str | None = "", **more: Any) -> Step:
        """Adds a step that searched."""
        return self.add(
            Step(
                subquery=one_line(subquery),
                decision=Decision.RETRIEVE,
                passages=list(passages),
                answer=one_line(answer or ""),
                **more,
            )
        )

    def known(self, subquery: str, answer: str | None, **more: Any) -> Step:
        """Adds a step that did without searching."""
        return self.add(
            Step(subquery=one_line(subquery), decision=Decision.PARAMETRIC, answer=one_line(answer or ""), **more)
        )

    def done(self, answer: str | None, reasoning: str = "", **more: Any) -> Trajectory:
        return Trajectory(
            question_id=self.question.id,
            question=self.question.question,
            strategy=self.strategy,
            steps=self.steps,
            answer=one_line(answer or "") or None,
            reasoning=reasoning,
            calls=self.calls,
            notes=self.notes,
            **more,
        )


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, run at the same time; where one fails, the others are cancelled and its error raised."""

    async def followed(one: Coroutine[Any, Any, T]) -> tuple[T, int]:
        return await one, path.get()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(followed(one)) for one in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    results = [task.result() for task in tasks]
    path.set(max((calls for _, calls in results), default=path.get()))
    return [result for result, _ in results]


def interleave(lists: Sequence[Sequence[Passage]]) -> list[Passage]:
    """All firsts, then all seconds and so on, each passage once."""
    longest = max(map(len, lists), default=0)
    return list({p.id: p for rank in range(longest) for some in lists for p in some[rank : rank + 1]}.values())
