"""Rollouts: questions answered with sampled tokens, many at a time, and what their decisions are worth.

With credit ``tree``, one decision of each rollout is tried both ways, as in the search for training data (DeepRAG,
Algorithm 1): the advantage of the decision taken is the difference of the mean rewards of the two subtrees.

The policy gradient needs Q(s, d) - V(s), which for two decisions is this difference times the probability of the
other decision. In expectation over the sampled decision, the difference gives twice that gradient, with less
variance than the reward of a single transcript, to which later decisions add their noise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from rag_train.errors import PromptTooLong, UserError
from rag_train.llm.base import LLM, Completion, Sampling, Usage
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.schema import Decision, LLMCall, Question, Step, Trajectory
from rag_train.strategies.base import Kit, Strategy, completed_steps
from rag_train.strategies.baselines.search_r1 import SearchR1
from rag_train.strategies.deeprag import DeepRAG
from rag_train.strategies.dualrag import DualRAG
from rag_train.strategies.planrag import PlanRAG
from rag_train.training.recipe import RLRecipe
from rag_train.training.rl.rewards import total, weights
from rag_train.training.rl.rows import Row, Turn, encode_rollout


class Counted:
    """An engine that adds the tokens of every call to ``spent``."""

    def __init__(self, llm: LLM, spent: list[Usage]):
        self._llm = llm
        self._spent = spent
        self.name, self.tokenizer = llm.name, llm.tokenizer

    async def complete(self, prompt: str, sampling: Sampling) -> Completion:
        completion = await self._llm.complete(prompt, sampling)
        self._spent.append(completion.usage)
        return completion

    async def aclose(self) -> None:
        """Do nothing: the engine belongs to all rollouts."""


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
    """Both decisions at step ``step`` of a rollout: the rewards of the transcripts below them."""

    step: int
    taken: list[float]
    other: list[float]

    @property
    def advantage(self) -> float:
        """Difference of the mean rewards of the decision that the rollout took and of the other one."""
        return fmean(self.taken) - fmean(self.other)


@dataclass
class Rollout:
    """A sampled trajectory, its reward, its row, and the tokens that the engine read and wrote for it."""

    trajectory: Trajectory
    reward: float
    row: Row
    branch: Branch | None
    read: int
    written: int


class Rollouts:
    """Makes rollouts with one engine and one retriever; rows are cut at ``max_tokens`` tokens."""

    def __init__(self, recipe: RLRecipe, llm: LLM, retriever: AsyncRetriever, max_tokens: int):
        self._recipe = recipe
        self._llm = llm
        self._retriever = retriever
        self._max_tokens = max_tokens
        self._weights = weights(recipe)

    async def sample(self, questions: Sequence[Question], seed: str, first: int = 0) -> list[Rollout]:
        """Answer all questions at the same time. The same ``seed`` and weights give the same rollouts.

        ``first`` is the number of the first question among those of all processes.
        """
        numbered = enumerate(questions, first)
        return list(await asyncio.gather(*(self._rollout(q, f"{seed}/{i}") for i, q in numbered)))

    async def _rollout(self, question: Question, seed: str) -> Rollout:
        spent: list[Usage] = []
        sampler = Sampler(self._llm, self._recipe.temperature, seed, spent)
        trajectory = await self._answered(question, self._strategy(sampler, spent).answer(question), sampler)
        if not sampler.turns:
            raise UserError(
                f"question {question.id!r}: its prompt exceeds the model's context; remove it from data"
            )
        row = encode_rollout(self._llm.tokenizer, self._trained(sampler.turns, seed), self._max_tokens)
        states = [number for number in row.decisions if number < len(trajectory.steps)]
        branch = None
        if self._recipe.credit == "tree" and states:
            number = random.Random(f"{seed}/state").choice(states)
            branch = await self._branch(question, trajectory, number, seed, spent)
        read, written = sum(each.prompt_tokens for each in spent), sum(each.completion_tokens for each in spent)
        return Rollout(trajectory, total(question, trajectory, self._weights), row, branch, read, written)

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

    async def _branch(
        self, question: Question, trajectory: Trajectory, number: int, seed: str, spent: list[Usage]
    ) -> Branch:
        """Try both decisions at step ``number`` of a trajectory."""
        before, state = trajectory.steps[:number], trajectory.steps[number]

        async def value(decision: Decision, k: int) -> float:
            sampler = Sampler(self._llm, self._recipe.temperature, f"{seed}/{decision}/{k}", spent)
            work = self._deeprag(sampler).branch(question, before, state.subquery, decision)
            begun = [*before, Step(subquery=state.subquery, decision=decision)]
            return total(question, await self._answered(question, work, sampler, begun), self._weights)

        # The rollout's own reward is no sample of `taken`. The state is drawn from the whole transcript, so that a
        # state with a short continuation is drawn more often, and the continuation that led to the draw is biased.
        [other] = set(Decision) - {state.decision}
        tries = [(decision, k) for decision in (state.decision, other) for k in range(self._recipe.branches)]
        values = await asyncio.gather(*(value(decision, k) for decision, k in tries))
        return Branch(number, values[: self._recipe.branches], values[self._recipe.branches :])

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
        return Kit(llm, self._retriever, self._recipe.passages, self._recipe.instructions)

    async def _answered(
        self,
        question: Question,
        work: Coroutine[Any, Any, Trajectory],
        sampler: Sampler,
        begun: Sequence[Step] = (),
    ) -> Trajectory:
        """Return the trajectory of ``work``; if the transcript became too long, without an answer.

        Its steps, or those that it has ``begun`` with, and the calls of ``sampler`` are in it, so that their prices
        are paid.
        """
        steps = completed_steps()
        try:
            return await work
        except PromptTooLong as error:
            usages = [turn.completion.usage for turn in sampler.turns]
            return Trajectory(
                question_id=question.id,
                question=question.question,
                strategy=self._recipe.strategy,
                steps=steps or list(begun),
                calls=[LLMCall(module="", **asdict(usage)) for usage in usages],
                error=str(error),
            )
