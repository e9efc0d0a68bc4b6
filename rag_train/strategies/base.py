"""The base class of inference strategies, the kit they work with, and the run of one question."""

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
from rag_train.llm.memo import CallLog, call_depth
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Decision, LLMCall, Passage, Question, Step, Trajectory

if TYPE_CHECKING:
    from rag_train.retrieval.rerank import Reranker  # needs an optional extra

T = TypeVar("T")

watcher: ContextVar[Callable[[str, Any], None] | None] = ContextVar("watcher", default=None)
"""Callback for the progress of `Strategy.answer`, called with ("step", Step) after each step, ("plan", Plan) after
planning, and ("outline", dict) after each change of the outline."""


class Ask(NamedTuple):
    """A module's task, its input fields and its parsed answer, which is None if it could not be parsed."""

    task: Task
    fields: Fields
    answer: Any


asked: ContextVar[list[Ask | None] | None] = ContextVar("asked", default=None)
"""List that collects the modules' asks during `Strategy.answer`, in the order in which they begin. None stands for
an ask that was not answered."""


@dataclass(frozen=True)
class Kit:
    """The models and retrievers that a strategy works with.

    Attributes:
        llm: the main model.
        retriever: the main retriever.
        passages: number of passages to retrieve for a query.
        instructions: whether prompts begin with the instruction in ``prompts/``; false for models that were trained
            without instructions.
        models: further models by role, such as ``revelator``, ``planner`` or ``classifier``.
        retrievers: further retrievers by kind: ``sparse``, ``dense`` or ``web``.
        reranker: model that scores passages; None to skip a method's reranking.
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
    """Base class of the inference strategies, which answer one question per call.

    Many calls can run at the same time: the engine and the retriever batch them. The fields of a subclass are its
    settings.
    """

    paper: ClassVar[str] = ""
    """Paper of the method, with the section."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Requirements in addition to a model and a retriever."""

    kit: Kit
    _: KW_ONLY
    name: str = ""
    """Specification of the strategy, including its settings."""

    @abstractmethod
    async def answer(self, question: Question) -> Trajectory:
        """Answer a question.

        Raises ValueError if a prompt exceeds the model's context, EngineError if a call fails.
        """


class Run:
    """The run of one question through a strategy, which makes the calls and collects the trajectory."""

    def __init__(self, strategy: Strategy, question: Question):
        self.kit = strategy.kit
        self.question = question
        self.strategy = strategy.name
        self.steps: list[Step] = []
        self.notes: dict[str, str] = {}
        self.calls: list[LLMCall] = []
        self._logs: dict[str, CallLog] = {}

    def log(self, role: str = "") -> CallLog:
        """Return the call log of the kit's model for ``role``, or of its main model if the role has none."""
        role = role if role in self.kit.models else ""
        if role not in self._logs:
            self._logs[role] = CallLog(self.kit.models[role] if role else self.kit.llm, self.calls)
        return self._logs[role]

    def prompt(self, name: str, body: str, lead: str = "", role: str = "") -> str:
        """Return a prompt: instruction ``name`` and ``body`` as the user's turn, ``lead`` as the reply's start."""
        head = f"{instruction(name)}\n\n" if self.kit.instructions else ""
        llm = self.kit.models.get(role, self.kit.llm)
        return as_turn(llm.tokenizer, head + body) + lead

    async def complete(self, module: str, prompt: str, sampling: Sampling, role: str = "") -> Completion:
        """Continue ``prompt`` with the model for ``role``; the tokens are counted under ``module``."""
        return await self.log(role).complete(module, prompt, sampling)

    async def ask(self, task: Task, fields: Fields, role: str = "") -> Any:
        """Perform a task and return the answer, of the task's type.

        If the model's text cannot be parsed, return None and add a note to the trajectory.
        """
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
        """Answer ``question`` from the passages in one call (see `formats.reader`); return (reasoning, answer).

        ``name`` is the name of the instruction; the default is that for direct answering, reading or chain of
        thought.
        """
        name = name or ("cot" if reason else "rag" if passages else "direct")
        marker = reader.THOUGHT if reason else FINAL
        body = reader.prompt(question, passages, reason=reason).removesuffix(marker)
        sampling = Sampling(max_tokens=256 if reason else 64, stop=() if reason else ("\n",))
        text = (await self.complete("reader", self.prompt(name, body, marker), sampling)).text
        return reader.parse(text if reason else FINAL + text)

    async def search(self, query: str, k: int | None = None, kind: str = "") -> list[Passage]:
        """Retrieve passages for ``query``; an empty query returns no passages."""
        query = one_line(query)
        retriever = self.kit.retrievers.get(kind, self.kit.retriever)
        return await retriever.search(query, k or self.kit.passages) if query else []

    async def search_all(self, queries: Sequence[str], k: int | None = None, kind: str = "") -> list[Passage]:
        """Retrieve passages for all queries, interleaved by rank and without duplicates."""
        queries = [q for q in dict.fromkeys(map(one_line, queries)) if q]
        retriever = self.kit.retrievers.get(kind, self.kit.retriever)
        return interleave(await retriever.search_all(queries, k or self.kit.passages))

    def add(self, step: Step) -> Step:
        """Add a step and report it to the watcher."""
        self.steps.append(step)
        self.show("step", step)
        return step

    def show(self, kind: str, value: Any) -> None:
        """Report ``value`` to the watcher, if there is one."""
        if watch := watcher.get():
            watch(kind, value)

    def retrieved(self, subquery: str, passages: Sequence[Passage], answer: str | None = "", **more: Any) -> Step:
        """Add a step that retrieved passages."""
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
        """Add a step that was answered from parametric knowledge."""
        return self.add(
            Step(subquery=one_line(subquery), decision=Decision.PARAMETRIC, answer=one_line(answer or ""), **more)
        )

    def done(self, answer: str | None, reasoning: str = "", **more: Any) -> Trajectory:
        """Return the complete trajectory."""
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
    """Run coroutines at the same time and return their results.

    If a coroutine fails, cancel the others and raise its error.
    """

    async def with_depth(coroutine: Coroutine[Any, Any, T]) -> tuple[T, int]:
        return await coroutine, call_depth.get()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(with_depth(coroutine)) for coroutine in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    results = [task.result() for task in tasks]
    call_depth.set(max((depth for _, depth in results), default=call_depth.get()))
    return [result for result, _ in results]


def interleave(lists: Sequence[Sequence[Passage]]) -> list[Passage]:
    """Merge ranked lists: all first passages, then all second passages, and so on, without duplicates."""
    longest = max(map(len, lists), default=0)
    return list({p.id: p for rank in range(longest) for each in lists for p in each[rank : rank + 1]}.values())
