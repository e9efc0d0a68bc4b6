"""The base class of inference strategies, the kit they work with, and the run of one question."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from rag_train.errors import UserError
from rag_train.formats import reader
from rag_train.formats.deeprag import FINAL, one_line
from rag_train.formats.instructions import OURS, Instruction
from rag_train.formats.prompting import as_turn
from rag_train.formats.tasks import LINE_TOKENS, Fields, Given, Task, user_turn
from rag_train.llm.base import LLM, Completion, Sampling
from rag_train.llm.call_log import CallLog, call_depth
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import AGAIN, UNPARSED, Decision, LLMCall, Passage, Plan, Question, Step, Trajectory

if TYPE_CHECKING:
    from rag_train.retrieval.rerank import Reranker  # needs an optional extra

T = TypeVar("T")
S = TypeVar("S", bound="Strategy")

Watcher = Callable[[str, Any], None]
"""Callback for the progress of a run: ("step", Step) after each step, ("plan", Plan) after planning, and
("outline", dict) after each change of the outline."""


class Ask(NamedTuple):
    """A module's task, its input fields and its answer, which is None if it was cut or could not be parsed."""

    task: Task
    fields: Fields
    answer: Any
    cut: bool = False

    def flaw(self, otherwise: str) -> str:
        """Return why there is no answer: it was cut, or ``otherwise``."""
        return "cut" if self.cut else otherwise


READER = "reader"
REASONING = Sampling(max_tokens=512, stop=("\nQuestion:",))
ANSWER_LINE = Sampling(max_tokens=LINE_TOKENS, stop=("\n",))
CONCLUDING_PASSAGES = 15
"""Maximum number of found passages that are read when the budget is spent."""


@dataclass(frozen=True)
class Need:
    """An ability that a strategy needs of its main model. `Strategy` checks it before the first question.

    Attributes:
        ability: name of the field of `Abilities`.
        when: says of the strategy's settings whether they need it.
        unless: the settings that do not need it, for the error message; empty if there are none.
    """

    ability: str
    when: Callable[[Any], bool] = lambda settings: True
    unless: str = ""


ABILITIES = {
    "logprobs": ("log-probabilities", "--engine vllm, or a server that reports them"),
    "continues": ("continued replies", "--engine vllm, or a server of completions"),
    "attention": ("attention weights", "--engine transformers with a decoder-only model"),
}
"""What each ability that strategies need gives, and what has it."""


class BudgetSpent(Exception):
    """The question's budget does not allow another call or retrieval."""


@dataclass(frozen=True)
class Kit:
    """The models and retrievers that a strategy works with.

    Attributes:
        llm: the main model.
        retriever: the main retriever.
        passages: number of passages to retrieve for a query.
        instructions: the instructions that prompts begin with.
        models: models of their own by role (see `Strategy.roles`); the main model takes all other roles.
        retrievers: further retrievers by kind: ``sparse``, ``dense`` or ``web``.
        reranker: model that scores passages; None to skip a method's reranking.
    """

    llm: LLM
    retriever: AsyncRetriever
    passages: int = 3
    instructions: Given = OURS
    models: Mapping[str, LLM] = field(default_factory=dict)
    retrievers: Mapping[str, AsyncRetriever] = field(default_factory=dict)
    reranker: Reranker | None = None


@dataclass(frozen=True)
class Strategy(ABC):
    """Base class of the inference strategies, which answer one question per call.

    Many calls can run at the same time: the engine and the retriever batch them. The fields of a subclass are its
    settings. All strategies have a budget for each question; when it is spent, one call answers from what was found
    so far.
    """

    paper: ClassVar[str] = ""
    """Paper of the method, with the section."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Requirements in addition to a model and a retriever, and to those of ``abilities``."""
    abilities: ClassVar[tuple[Need, ...]] = ()
    """What the main model has to be able to do. The calls of roles need no ability: they ask for a line of text or
    for a task's format, which engines without guided decoding ask for in words."""
    roles: ClassVar[tuple[str, ...]] = ("reader",)
    """Roles that a model other than the main one can take. The reader answers in `Run.read`."""

    kit: Kit
    _: KW_ONLY
    name: str = ""
    """Specification of the strategy, including its settings."""
    max_calls: int | None = None
    """Maximum number of engine calls for a question. The last one is kept for the answer from what was found."""
    max_retrievals: int | None = None
    """Maximum number of queries to a retriever for a question."""
    max_question_tokens: int | None = None
    """Number of tokens, read and written, after which no new call begins except the answer from what was found."""
    max_tokens: int | None = None
    """Maximum number of tokens of an engine call; null: the limit of each kind of call. A text that is cut there is
    no answer, and is counted."""

    def __post_init__(self) -> None:
        """Raise UserError if the main model cannot do what the settings need."""
        for need in self.abilities:
            gives, remedy = ABILITIES[need.ability]
            if need.when(self) and not getattr(self.kit.llm.abilities, need.ability):
                otherwise = f", or {need.unless}" if need.unless else ""
                raise UserError(
                    f"--strategy {self.name}: needs {gives}, which {self.kit.llm.name} does not give; "
                    f"use {remedy}{otherwise}"
                )

    async def answer(self, question: Question) -> Trajectory:
        """Answer a question, as `Run.answer` does."""
        return await Run(self, question).answer()

    @abstractmethod
    async def solve(self, run: Run) -> Trajectory:
        """Answer the question of ``run``, with its calls and searches, and return ``run.done(answer)``."""


class Bound(NamedTuple):
    """The most calls and retrievals of a question, at default settings with three passages for a query."""

    calls: int
    retrievals: int


class Named(NamedTuple):
    """A name of a strategy: its class, its preset settings, and the bound on a question's cost, if one is known."""

    cls: type[Strategy]
    preset: dict[str, Any]
    bound: Bound | None = None


STRATEGIES: dict[str, Named] = {}
"""The strategies by name; `rag_train.strategies.registry` imports all modules that register some."""


def strategy(name: str, bound: Bound, **preset: Any) -> Callable[[type[S]], type[S]]:
    """Register a strategy class under a name, with preset settings. A class may have several names, each by a
    decorator; the lowest decorator's name is listed first."""

    def register(cls: type[S]) -> type[S]:
        STRATEGIES[name] = Named(cls, preset, bound)
        return cls

    return register


class Run:
    """The run of one question through a strategy, which makes the calls and collects the trajectory.

    Attributes:
        steps: the steps so far, also of a run that failed.
        asks: what the modules were asked, in the order in which they began; None: not answered.
    """

    def __init__(self, strategy: Strategy, question: Question, watch: Watcher = lambda kind, value: None):
        """``watch`` is told of the progress."""
        self.kit = strategy.kit
        self.question = question
        self.show = watch
        self.steps: list[Step] = []
        self.asks: list[Ask | None] = []
        self.notes: dict[str, str] = {}
        self.calls: list[LLMCall] = []
        self.plan: Plan | None = None
        self.outline: dict[str, list[str]] = {}
        self._strategy = strategy
        self._begun = 0
        self._queries: list[str] = []
        self._found: list[list[Passage]] = []
        self._concluding = False
        self._logs: dict[str, CallLog] = {}

    async def answer(self) -> Trajectory:
        """Answer the question; if the budget is spent, from what was found.

        Raises ValueError if a prompt exceeds the model's context, EngineError if a call fails.
        """
        try:
            return await self._strategy.solve(self)
        except BudgetSpent as spent:
            return await self.conclude(str(spent))

    def cut(self, what: str) -> None:
        """Note what a limit has cut."""
        self.notes["cut"] = "; ".join(filter(None, [self.notes.get("cut"), what]))

    def first(self, items: Sequence[T], most: int, what: str) -> list[T]:
        """Return the first ``most`` items, and note how many there were if there are more."""
        if len(items) > most:
            self.cut(f"{what}: the first {most} of {len(items)}")
        return list(items[:most])

    def log(self, role: str = "") -> CallLog:
        """Return the call log of the kit's model for ``role``, or of its main model if the role has none."""
        role = role if role in self.kit.models else ""
        if role not in self._logs:
            self._logs[role] = CallLog(
                self.kit.models[role] if role else self.kit.llm, self.calls, self._allow_call
            )
        return self._logs[role]

    def _allow_call(self) -> None:
        """Count a call that is about to begin. Raise BudgetSpent if only the concluding call is left."""
        calls, tokens = self._strategy.max_calls, self._strategy.max_question_tokens
        if not self._concluding:
            if calls is not None and self._begun + 1 >= calls:
                raise BudgetSpent(f"max_calls={calls} reached; answered from what was found")
            if tokens is not None and tokens <= sum(c.prompt_tokens + c.completion_tokens for c in self.calls):
                raise BudgetSpent(f"max_question_tokens={tokens} reached; answered from what was found")
        self._begun += 1

    def instruction(self, name: str) -> Instruction | None:
        """Return the instruction of this name; None if prompts have none."""
        return self.kit.instructions[name] if name and self.kit.instructions else None

    def prompt(self, name: str, fields: Fields, lead: str = "", role: str = "", begun: str = "") -> str:
        """Return a prompt: instruction ``name`` and fields as the user's turn, and the reply's start.

        The reply starts with ``lead``, unless the instruction is a whole prompt, and with what the model has
        ``begun``. An empty ``name`` stands for no instruction.
        """
        llm, instruction = self.kit.models.get(role, self.kit.llm), self.instruction(name)
        turn = as_turn(llm.tokenizer, user_turn(self.kit.instructions, name, fields))
        return turn + ("" if instruction and instruction.whole else lead) + begun

    async def complete(self, module: str, prompt: str, sampling: Sampling, role: str = "") -> Completion:
        """Continue ``prompt`` with the model for ``role``; the tokens are counted under ``module``."""
        most = self._strategy.max_tokens
        if most is not None and sampling.max_tokens > 1:  # a call of one token asks for its probabilities only
            sampling = replace(sampling, max_tokens=most)
        return await self.log(role).complete(module, prompt, sampling)

    async def ask(self, task: Task, fields: Fields, role: str = "") -> Any:
        """Perform a task and return the answer, of the task's type; None if the model gave none (see `perform`)."""
        return (await self.perform(task, fields, role)).answer

    async def perform(self, task: Task, fields: Fields, role: str = "") -> Ask:
        """Perform a task and return the ask with its answer.

        If the model's text cannot be parsed or was cut, there is no answer, and a note in the trajectory. It is not
        asked again: decoding is greedy, so the same prompt gives the same text, and a sampled second attempt would
        make runs differ. With guided decoding, only text that was cut at the task's limit does not parse;
        `ChatEngine` asks closed models, which are not guided, for the format once more.
        """
        place = len(self.asks)
        self.asks.append(None)
        prompt, instruction = self.prompt(task.name, fields, task.lead, role), self.instruction(task.name)
        completion = await self.complete(task.name, prompt, task.sampling(instruction), role)
        ask = Ask(task, fields, task.parse(completion.whole, instruction), completion.truncated)
        if ask.answer is None:
            self.notes[task.name] = f"{UNPARSED}: {one_line(completion.text)[:400]!r}"
        self.asks[place] = ask
        return ask

    async def read(
        self,
        question: str,
        passages: Sequence[Passage] = (),
        *,
        name: str = "",
        reason: bool = False,
        again: bool = True,
        module: str = READER,
    ) -> tuple[str, str | None]:
        """Answer ``question`` from the passages (see `formats.reader`); return (reasoning, answer).

        If the reasoning has no answer, for example because it was cut at its token limit, and ``again`` is true, a
        second call asks for the answer. ``name`` is the name of the instruction; the default is that for direct
        answering, reading or chain of thought.
        """
        name = name or ("cot" if reason else "rag" if passages else "direct")
        marker = reader.THOUGHT if reason else FINAL
        sampling = REASONING if reason else ANSWER_LINE
        prompt = self.prompt(name, reader.fields(question, passages), marker, READER)
        written = await self.complete(module, prompt, sampling, READER)
        if not reason:
            return "", reader.parse(FINAL + (written.whole or ""))[1]
        reasoning, answer = reader.parse(written.text, cut=written.truncated)
        if answer is not None or not again:
            return reasoning, answer
        written = await self.complete(AGAIN, f"{prompt} {reasoning}\n{FINAL}", ANSWER_LINE, READER)
        return reasoning, reader.parse(FINAL + (written.whole or ""))[1]

    async def search(self, query: str, k: int | None = None, kind: str = "") -> list[Passage]:
        """Retrieve passages for ``query``; an empty query returns no passages."""
        return (await self.search_each([query], k, kind)).get(one_line(query), [])

    async def search_all(self, queries: Sequence[str], k: int | None = None, kind: str = "") -> list[Passage]:
        """Retrieve passages for all queries, interleaved by rank and without duplicates."""
        return interleave(list((await self.search_each(queries, k, kind)).values()))

    async def search_each(
        self, queries: Sequence[str], k: int | None = None, kind: str = ""
    ) -> dict[str, list[Passage]]:
        """Retrieve passages for each query, by the query in one line; empty and repeated queries are left out."""
        queries = [q for q in dict.fromkeys(map(one_line, queries)) if q]
        limit = self._strategy.max_retrievals
        allowed = queries if limit is None else queries[: limit - len(self._queries)]
        self._queries += allowed
        retriever = self.kit.retrievers.get(kind, self.kit.retriever)
        most = k or self.kit.passages
        found = [passages[:most] for passages in await retriever.search_all(allowed, most)] if allowed else []
        self._found += found
        if len(allowed) < len(queries):
            raise BudgetSpent(f"max_retrievals={limit} reached; answered from what was found")
        return dict(zip(allowed, found, strict=True))

    async def conclude(self, reason: str) -> Trajectory:
        """Answer from the answers and passages found so far, in one call, and note ``reason``."""
        self._concluding = True
        self.notes["budget"] = reason
        known = [Passage(id="", text=f"{step.subquery} {step.answer}") for step in self.steps if step.answer]
        found = interleave(self._found)[:CONCLUDING_PASSAGES]
        _, answer = await self.read(self.question.question, [*known, *found])
        recorded = Counter(query for step in self.steps for query in step.sent)
        if missing := list((Counter(self._queries) - recorded).elements()):
            self.retrieved(self.question.question, found, answer, queries=missing)
        return self.done(answer)

    def add(self, step: Step) -> Step:
        """Add a step and report it to the watcher."""
        self.steps.append(step)
        self.show("step", step)
        return step

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

    def done(self, answer: str | None, reasoning: str = "") -> Trajectory:
        """Return the complete trajectory; a missing or empty answer and texts that were cut are noted."""
        for module, texts in Counter(call.module for call in self.calls if call.cut).items():
            self.cut(f"{module}: {texts} of its texts at the limit of tokens")
        answer = one_line(answer or "") or None
        if answer is None:
            self.notes["answer"] = "the model wrote none"
        return Trajectory(
            question_id=self.question.id,
            question=self.question.question,
            strategy=self._strategy.name,
            steps=self.steps,
            answer=answer,
            reasoning=reasoning,
            calls=self.calls,
            notes=self.notes,
            plan=self.plan,
            outline=self.outline,
        )


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at the same time and return their results.

    If a coroutine fails, cancel the others and raise its error. If the budget is spent, let the others finish what
    they have begun.
    """
    spent: list[BudgetSpent] = []

    async def with_depth(coroutine: Coroutine[Any, Any, T]) -> tuple[T | None, int]:
        try:
            return await coroutine, call_depth.get()
        except BudgetSpent as error:
            spent.append(error)
            return None, call_depth.get()

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(with_depth(coroutine)) for coroutine in work]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    results = [task.result() for task in tasks]
    call_depth.set(max((depth for _, depth in results), default=call_depth.get()))
    if spent:
        raise spent[0]
    return [cast(T, result) for result, _ in results]


def interleave(lists: Sequence[Sequence[Passage]]) -> list[Passage]:
    """Merge ranked lists: all first passages, then all second passages, and so on, without duplicates."""
    longest = max(map(len, lists), default=0)
    return list({p.id: p for rank in range(longest) for each in lists for p in each[rank : rank + 1]}.values())


def joined(lists: Sequence[Sequence[Passage]]) -> list[Passage]:
    """Put lists one after another, without duplicates."""
    return list({passage.id: passage for each in lists for passage in each}.values())
