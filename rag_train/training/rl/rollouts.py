"""Rollouts: questions answered with sampled tokens, many at a time, and what their decisions are worth.

With credit ``tree``, the rollouts' decisions are tried both ways, as in the search for training data (DeepRAG,
Algorithm 1): the advantage of the decision taken is the difference of the mean rewards of the two subtrees. The
rollouts of a question visit many states together, which are tried once.

The policy gradient needs Q(s, d) - V(s), which for two decisions is this difference times the probability of the
other decision. In expectation over the sampled decision, the difference gives twice that gradient, with less
variance than the reward of a single transcript, to which later decisions add their noise.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from rag_train.errors import Refused, UserError
from rag_train.formats import deeprag
from rag_train.llm.base import LLM, Around, Completion, Sampling, Usage
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Decision, LLMCall, Question, Step, Trajectory
from rag_train.strategies.base import Kit, Run, Strategy, together
from rag_train.strategies.baselines.search_r1 import SearchR1
from rag_train.strategies.deeprag import DeepRAG
from rag_train.strategies.dualrag import DualRAG
from rag_train.strategies.planrag import PlanRAG
from rag_train.training.recipe import RLRecipe
from rag_train.training.rl.rewards import Rewards
from rag_train.training.rl.rows import Row, Turn, encode_rollout


class Counted(Around):
    """An engine that adds the tokens of every call to ``spent``."""

    def __init__(self, llm: LLM, spent: list[Usage]):
        super().__init__(llm)
        self._spent = spent

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        completion = await super().complete(prompt, sampling)
        self._spent.append(completion.usage)
        return completion


class Sampler(Counted):
    """An engine for the trained calls of one rollout: each is sampled with a seed of its own, and recorded.

    Decoding is not guided, so that the probabilities are those that the trainer computes. The log-probabilities are
    not passed on. Without them, a strategy follows the sampled decisions and applies no threshold.
    """

    def __init__(self, llm: LLM, temperature: float, seed: str, spent: list[Usage]):
        super().__init__(llm, spent)
        self._temperature = temperature
        self._random = random.Random(seed)
        self.turns: list[Turn] = []

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        seed = self._random.getrandbits(31)
        unguided = replace(sampling, json_schema=None, choice=None, regex=None)
        completion = await super().complete(
            prompt, replace(unguided, temperature=self._temperature, seed=seed, logprobs=1)
        )
        self.turns.append(Turn(prompt, completion))
        return replace(completion, logprobs=())


@dataclass
class Branch:
    """Both decisions at step ``step`` of a rollout: the rewards of sampled transcripts below them."""

    step: int
    taken: list[float]
    other: list[float]

    @property
    def advantage(self) -> float:
        """Difference of the mean rewards of the decision that the rollout took and of the other one."""
        return fmean(self.taken) - fmean(self.other)


@dataclass
class Rollout:
    """A sampled trajectory, its reward, its row, the tokens that the engine read and wrote for it, those of its
    decisions that were tried both ways, and the parts of its reward by name.

    The tokens of the tries at a state count for one of the rollouts that visit it.
    """

    trajectory: Trajectory
    reward: float
    row: Row
    read: int
    written: int
    branches: list[Branch] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)

    def pay(self, spent: Sequence[Usage]) -> None:
        """Add the tokens of calls."""
        self.read += sum(each.prompt_tokens for each in spent)
        self.written += sum(each.completion_tokens for each in spent)


class Rollouts:
    """Makes rollouts with one engine and one retriever; rows are cut at ``max_tokens`` tokens."""

    def __init__(self, recipe: RLRecipe, llm: LLM, retriever: AsyncRetriever, max_tokens: int):
        self._recipe = recipe
        self._llm = llm
        self._retriever = retriever
        self._max_tokens = max_tokens
        self._rewards = Rewards(recipe.reward, recipe.price)

    async def sample(self, questions: Sequence[Question], seed: str, first: int = 0) -> list[Rollout]:
        """Answer all questions at the same time. The same ``seed`` and weights give the same rollouts.

        ``questions`` has each question as often as a group has rollouts, one after the other; ``first`` is the
        number of the first one among those of all processes.
        """
        size = self._recipe.group
        starts = range(0, len(questions), size)
        groups = (self._group(questions[start : start + size], seed, first + start) for start in starts)
        return [rollout for group in await together(groups) for rollout in group]

    async def _group(self, questions: Sequence[Question], seed: str, first: int) -> list[Rollout]:
        numbered = enumerate(questions, first)
        group = await together(self._rollout(q, f"{seed}/{i}") for i, q in numbered)
        if self._recipe.credit == "tree":
            await self._try_decisions(questions[0], group, f"{seed}/{first}/states")
        return group

    async def _rollout(self, question: Question, seed: str) -> Rollout:
        spent: list[Usage] = []
        sampler = Sampler(self._llm, self._recipe.temperature, seed, spent)
        run = Run(self._strategy(sampler, spent), question)
        trajectory = await self._answered(run, run.answer(), sampler)
        if not sampler.turns:
            raise UserError(
                f"question {question.id!r}: its prompt is refused ({trajectory.error}); remove it from data"
            )
        row = encode_rollout(self._llm.tokenizer, self._trained(sampler.turns, seed), self._max_tokens)
        parts = self._rewards.measure(question, trajectory)
        rollout = Rollout(trajectory, self._rewards.total(parts), row, 0, 0, parts=parts)
        rollout.pay(spent)
        return rollout

    def _trained(self, turns: list[Turn], seed: str) -> list[Turn]:
        """Return the calls that are trained.

        The calls of DualRAG's modules read a text each. One of them is trained, drawn at random: in expectation the
        gradient is the mean over the calls.
        """
        if self._recipe.strategy != "dualrag":
            return turns
        # Calls that are made at the same time end in any order.
        ordered = sorted(turns, key=lambda turn: (turn.prompt, turn.written))
        return [random.Random(f"{seed}/call").choice(ordered)]

    async def _try_decisions(self, question: Question, group: Sequence[Rollout], seed: str) -> None:
        """Try both decisions at the states that a question's rollouts visit, at most as many as there are rollouts.

        If there are more, they are drawn at random, each visit with the same chance.
        """
        visits = [
            (rollout, number)
            for rollout in group
            for number in rollout.row.decisions
            if number < len(rollout.trajectory.steps)
        ]
        random.Random(seed).shuffle(visits)
        states: dict[str, list[tuple[Rollout, int]]] = {}
        for rollout, number in visits:
            steps = rollout.trajectory.steps
            state = deeprag.text_of(steps[:number]) + deeprag.subquery_line(steps[number].subquery)
            if state in states or len(states) < len(group):
                states.setdefault(state, []).append((rollout, number))
        await together(self._try_state(question, each, f"{seed}/{i}") for i, each in enumerate(states.values()))
        for rollout in group:
            rollout.branches.sort(key=lambda branch: branch.step)

    async def _try_state(self, question: Question, visits: Sequence[tuple[Rollout, int]], seed: str) -> None:
        """Try both decisions at a state, and add the rewards to the rollouts that visit it, each at a step."""
        first, number = visits[0]
        before, subquery = first.trajectory.steps[:number], first.trajectory.steps[number].subquery
        spent: list[Usage] = []

        async def value(decision: Decision, k: int) -> float:
            sampler = Sampler(self._llm, self._recipe.temperature, f"{seed}/{decision}/{k}", spent)
            strategy = self._deeprag(sampler)
            run = Run(strategy, question)
            work = strategy.branch(run, before, subquery, decision)
            begun = [*before, Step(subquery=subquery, decision=decision)]
            trajectory = await self._answered(run, work, sampler, begun)
            return self._rewards.total(self._rewards.measure(question, trajectory))

        tries = [(decision, k) for decision in Decision for k in range(self._recipe.branches)]
        rewards = await together(value(decision, k) for decision, k in tries)
        first.pay(spent)
        halves = rewards[: self._recipe.branches], rewards[self._recipe.branches :]
        values = dict(zip(Decision, halves, strict=True))
        # The rollouts' own rewards are not used: they would be biased. A longer rollout has more states, and
        # only some of all states are tried: which ones depends on how the rollouts ended.
        for rollout, number in visits:
            taken = rollout.trajectory.steps[number].decision
            [other] = set(Decision) - {taken}
            rollout.branches.append(Branch(number, values[taken], values[other]))

    def _strategy(self, sampler: Sampler, spent: list[Usage]) -> Strategy:
        name, turns, tokens = self._recipe.strategy, self._recipe.max_steps, self._recipe.call_tokens
        match name:
            case "deeprag":
                return self._deeprag(sampler)
            case "search-r1":
                return SearchR1(self._kit(sampler), name=name, turns=turns, max_tokens=tokens)
            case "dualrag":
                return DualRAG(self._kit(sampler), name=name, max_iterations=turns)
            case "planrag":
                kit = self._kit(Counted(self._llm, spent))
                return PlanRAG(replace(kit, models={"planner": sampler}), name=name)

    def _deeprag(self, llm: LLM) -> DeepRAG:
        steps, tokens = self._recipe.max_steps, self._recipe.call_tokens
        return DeepRAG(self._kit(llm), name="deeprag", max_steps=steps, max_tokens=tokens)

    def _kit(self, llm: LLM) -> Kit:
        return Kit(llm, self._retriever, self._recipe.passages, self._recipe.given)

    async def _answered(
        self,
        run: Run,
        work: Coroutine[Any, Any, Trajectory],
        sampler: Sampler,
        begun: Sequence[Step] = (),
    ) -> Trajectory:
        """Return the trajectory of ``work``, done by ``run``; without an answer if the transcript is refused.

        Its steps, or those that it has ``begun`` with, and the calls of ``sampler`` are in it, so that their prices
        are paid.
        """
        try:
            return await work
        except Refused as error:
            usages = [turn.completion.usage for turn in sampler.turns]
            return Trajectory(
                question_id=run.question.id,
                question=run.question.question,
                strategy=self._recipe.strategy,
                steps=run.steps or list(begun),
                calls=[LLMCall(module="", **asdict(usage)) for usage in usages],
                error=str(error),
                refused=error.reason,
            )
