"""Stage III: TRL's GRPOTrainer over rollouts of our strategy.

TRL computes rewards, group advantages, importance weights, the clipped loss and the metrics. Ours: the rollouts
(TRL's ``rollout_func``), an advantage for each token, the dropping of groups without variance, and the tree layout
of a batch (`rag_train.training.rl.logprobs`).

The rollouts of a step are those of its weights (`rag_train.training.rl.policy`). With ``rl.ahead`` they are those
of the weights one generation before, and are made while the model trains.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import Sampler
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from rag_train.errors import UserError
from rag_train.jobs.files import write_text
from rag_train.questions.load import load_questions
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.open import open_retriever
from rag_train.schema import Decision, Question
from rag_train.training.data import DataReport
from rag_train.training.failures import FiniteLossTrainer
from rag_train.training.memory import current_sharding
from rag_train.training.probe import AtStart, require_trees
from rag_train.training.recipe import TrainRecipe
from rag_train.training.rl.ahead import Background, Begun, Foreseen
from rag_train.training.rl.logprobs import tree_logprobs
from rag_train.training.rl.policy import Policy, SharedPolicy, VLLMPolicy, generating
from rag_train.training.rl.rewards import Rewards
from rag_train.training.rl.rollouts import Rollout, Rollouts
from rag_train.training.setup import model_config, parts_for_trl, trainer_arguments
from rag_train.training.tree import attention_for_trees

ROLLOUTS = "rollouts.jsonl"
"""File next to the checkpoints with the rollouts of the last generation."""
DROPPED = "groups/dropped"
NO_ENTROPY = 1e-4
"""Entropy in nats below which the model writes the same text every time."""


class RolloutTrainer(FiniteLossTrainer, GRPOTrainer):
    """TRL's GRPOTrainer over rows whose ``prompt`` is a `Question` as JSON: TRL hands only prompts to rollouts."""

    def __init__(self, recipe: TrainRecipe, retriever: AsyncRetriever, checkpoints: Path, **arguments: Any):
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` is pinned with TRL's version
        assert recipe.rl is not None
        parts = [_part(name) for name in Rewards(recipe.rl.reward, recipe.rl.price).weights]
        super().__init__(reward_funcs=parts, rollout_func=self._roll_out, **arguments)
        self._recipe = recipe.rl
        self._background = Background()  # the event loop of the engine and of all rollouts
        self._policy = self._background.run(self._start(recipe, checkpoints))
        self._rollouts = Rollouts(recipe.rl, self._policy, retriever, recipe.max_tokens)
        self._made: list[Rollout] = []
        self._begun: Begun | None = None
        # TRL weights and logs the difference between engine and trainer only for vLLM, by log-probabilities alone.
        # It calls `sync_weights` before the rollouts of a step.
        own: Any = self
        self.use_vllm, self.vllm_generation, self._last_loaded_step = True, own, -1
        if self._recipe.layout == "tree":
            self.add_callback(AtStart(lambda: require_trees(self.model_wrapped, self.args.bf16)))

    async def _start(self, recipe: TrainRecipe, checkpoints: Path) -> Policy:
        if self._recipe.engine == "vllm":
            return VLLMPolicy.start(recipe, checkpoints / "sent")
        tokenizer: Any = self.processing_class
        return SharedPolicy(self.model, tokenizer, "policy")

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train as TRL does, and shut the engine down."""
        try:
            return super().train(*arguments, **named)
        finally:
            if self._begun:
                self._begun.made.cancel()
            self._background.run(self._policy.aclose())
            self._background.close()

    def _run_epoch(self, *arguments: Any, **named: Any) -> None:
        """Run no epoch if a callback has stopped the training at its beginning; transformers would make a step."""
        if not self.control.should_training_stop:
            super()._run_epoch(*arguments, **named)

    def sync_weights(self) -> None:
        """Do nothing: `_roll_out` sends the weights, after the rollouts that were begun ahead."""

    def _roll_out(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Make a rollout for each prompt, or return those begun ahead; ``trainer`` is this trainer."""
        start, begun, self._begun = time.perf_counter(), self._begun, None
        ahead = begun.made.result() if begun else []  # no call may be in flight when the weights change
        made = ahead if begun and begun.prompts == prompts else None
        waited = time.perf_counter() - start
        self._background.run(self._policy.update(self.model, self.state.global_step))
        self._metrics["train"]["update_time"].append(time.perf_counter() - start - waited)
        start = time.perf_counter() - waited
        if made is None:
            with generating(self.accelerator.unwrap_model(self.model)):
                made = self._begin(prompts, self.state.global_step).made.result()
        self._metrics["train"]["rollout_time"].append(time.perf_counter() - start)
        self._made = made
        if self._recipe.ahead and (following := self._following()):
            self._begun = self._begin(following, self.state.global_step + self._recipe.updates)
        rows = [rollout.row for rollout in self._made]
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.trained for row in rows],
            "parts": [rollout.parts for rollout in self._made],
        }

    def _begin(self, prompts: list[str], step: int) -> Begun:
        """Begin the rollouts of ``prompts``, on which the model trains at ``step``."""
        questions = [Question.model_validate_json(prompt) for prompt in prompts]
        first = self.accelerator.process_index * len(questions)
        seed = f"{self.args.seed}/{step}"
        return Begun(prompts, self._background.begin(self._rollouts.sample(questions, seed, first)))

    def _get_train_sampler(self, *arguments: Any, **named: Any) -> Sampler:
        sampler: Any = super()._get_train_sampler(*arguments, **named)
        self._order = Foreseen(sampler, lambda: self._generation() // self._generations(len(sampler)))
        return self._order

    def _generation(self) -> int:
        """Return the number of the generation that is trained on, since the beginning of the training."""
        return self.state.global_step // self._recipe.updates

    def _generations(self, rows: int) -> int:
        """Return the number of generations of an epoch whose sampler names ``rows`` rows.

        TRL's sampler names the rows of a generation, of one process after the other, as often as it has batches.
        """
        settings: Any = self.args
        return rows // (settings.generation_batch_size * settings.steps_per_generation)

    def _following(self) -> list[str]:
        """Return the prompts of this process in the generation after this one, none at the end of an epoch."""
        settings: Any = self.args
        dataset: Any = self.train_dataset
        size, times = settings.generation_batch_size, settings.steps_per_generation
        order, each = self._order.order, size // self.accelerator.num_processes
        generation = self._generation() % self._generations(len(order)) + 1
        place = generation * size * times + self.accelerator.process_index * each
        return [dataset[row]["prompt"] for row in order[place : place + each]]

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save without TRL's copy of the adapters that training started from, which it makes again at each start.

        From a checkpoint with two adapters, transformers would load the copy alone.
        """
        super()._save(output_dir, state_dict)
        shutil.rmtree(Path(output_dir or self.args.output_dir or ".") / "ref", ignore_errors=True)

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> None:
        super()._save_checkpoint(*arguments, **named)
        if self._begun:
            self._begun.save(self._ahead_file(f"checkpoint-{self.state.global_step}"))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint and (file := self._ahead_file(Path(checkpoint).name)).exists():
            self._begun = Begun.load(file)

    def _ahead_file(self, checkpoint: str) -> Path:
        """Return the file in a checkpoint with the rollouts that this process has begun ahead."""
        assert self.args.output_dir is not None
        return Path(self.args.output_dir) / checkpoint / f"ahead-{self.accelerator.process_index}.json"

    def _prepare_inputs(self, inputs: Any) -> dict[str, Any]:
        """Return a batch as TRL does, but with the rollouts of a question next to each other."""
        before = self._buffered_inputs
        batch = super()._prepare_inputs(inputs)
        if self._buffered_inputs is before or self._buffered_inputs is None:
            return batch
        self._buffered_inputs = _in_order(self._buffered_inputs)
        return self._buffered_inputs[self._step % len(self._buffered_inputs)]

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **more
    ):
        """Return log-probabilities, entropies and auxiliary loss as TRL does, from trees of ``batch_size`` rows."""
        if self._recipe.layout == "rollouts":
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **more
            )
        size = batch_size or len(input_ids)
        with self.accelerator.autocast():
            parts = [
                tree_logprobs(model, ids, mask, logits_to_keep)
                for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True)
            ]
        logprobs, entropies, losses = zip(*parts, strict=True)
        return (
            torch.cat(logprobs),
            None if entropies[0] is None else torch.cat(entropies),
            None if losses[0] is None else torch.stack(losses).mean(),
        )

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Add to TRL's batch an advantage for each token, and the order of its rows, which TRL will shuffle; mask
        the groups in which every advantage is 0."""
        batch = super()._generate_and_score_completions(inputs)
        size, completions = self._recipe.group, batch["completion_ids"]
        advantages = torch.zeros(completions.shape)
        for i, (rollout, advantage) in enumerate(zip(self._made, batch["advantages"].tolist(), strict=True)):
            group = self._made[i - i % size :][:size]
            advantages[i] = token_advantages(rollout, advantage, group, completions.size(1))
        kept = advantages.view(len(self._made) // size, -1).any(1).repeat_interleave(size)
        batch["advantages"] = advantages.to(completions.device)
        batch["order"] = torch.arange(len(self._made), device=completions.device)
        batch["tool_mask"] = batch["tool_mask"] * kept[:, None].to(completions.device)
        trained = (batch["completion_mask"] * batch["tool_mask"]).sum()
        batch["num_items_in_batch"] = self.accelerator.gather(trained).sum()
        counts = _counts(self._made) | {"kept": kept.sum().item()}
        values = torch.tensor([*counts.values()], dtype=torch.float64).to(completions.device)
        totals = self.accelerator.gather(values[None]).sum(0).tolist()
        for name, value in _measures(dict(zip(counts, totals, strict=True))).items():
            self._metrics["train"][name].append(value)
        if self.accelerator.is_main_process:
            self._write_rollouts(batch["advantages"].tolist())
        return batch

    def _write_rollouts(self, advantages: Sequence[Sequence[float]]) -> None:
        assert self.args.output_dir is not None
        tokenizer: Any = self.processing_class
        lines = [
            json.dumps(
                {
                    "step": self.state.global_step,
                    "reward": rollout.reward,
                    "advantage": next((a for a, t in zip(row, rollout.row.trained, strict=False) if t), 0.0),
                    "branches": list(map(vars, rollout.branches)),
                    "text": tokenizer.decode(rollout.row.prompt_ids + rollout.row.completion_ids),
                    "trajectory": rollout.trajectory.model_dump(mode="json", exclude_defaults=True),
                }
            )
            for rollout, row in zip(self._made, advantages, strict=True)
        ]
        write_text(Path(self.args.output_dir) / ROLLOUTS, "".join(f"{line}\n" for line in lines))

    def readable(self, inputs: Any) -> dict[str, Any]:
        """Return the batch that was trained on; ``inputs`` are only its questions."""
        assert self._buffered_inputs is not None
        return super().readable(self._buffered_inputs[(self._step - 1) % len(self._buffered_inputs)])


def _in_order(batches: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the batches of a generation with all rows in the order of ``order``."""
    order = torch.cat([batch["order"] for batch in batches]).argsort()
    whole = {
        name: torch.cat([batch[name] for batch in batches])[order] if value.ndim else value
        for name, value in batches[0].items()
    }
    return split_tensor_dict(whole, len(batches))


def token_advantages(rollout: Rollout, advantage: float, group: Sequence[Rollout], size: int) -> torch.Tensor:
    """Return the advantage of each of ``size`` tokens: ``advantage``, and those of the branches at their decisions.

    ``advantage`` is 0 in a group whose rewards are equal, where TRL's is the rounding error of their mean.
    """
    equal = len({each.reward for each in group}) == 1
    values = torch.full((size,), 0.0 if equal else advantage)
    for branch in rollout.branches:
        values[rollout.row.decisions[branch.step]] = branch.advantage
    return values


def _counts(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the sums over rollouts that `_measures` needs, but the number of ``kept`` ones."""
    decisions = [step.decision for rollout in rollouts for step in rollout.trajectory.steps]
    branches = [(branch, each.trajectory.steps[branch.step]) for each in rollouts for branch in each.branches]
    gains = [
        branch.advantage if step.decision is Decision.RETRIEVE else -branch.advantage for branch, step in branches
    ]
    # Each factor has noise of its own, so that the mean of the product has none: it is that of the squared
    # difference. The mean of the absolute difference would be mostly noise.
    signals = [
        (branch.taken[0] - branch.other[0]) * (branch.taken[1] - branch.other[1])
        for branch, _ in branches
        if len(branch.taken) > 1
    ]
    return {
        "rollouts": len(rollouts),
        "read": sum(each.read for each in rollouts),
        "written": sum(each.written for each in rollouts),
        "lost": sum(each.row.lost for each in rollouts),
        "trained": sum(sum(each.row.trained) for each in rollouts),
        "decisions": len(decisions),
        "retrieve": decisions.count(Decision.RETRIEVE),
        "gains": len(gains),
        "gain": sum(gains),
        "signals": len(signals),
        "signal": sum(signals),
    }


def _measures(totals: Mapping[str, float]) -> dict[str, float]:
    """Return metrics that TRL does not have, from the sums over all processes.

    The values of decisions are left out in a step that has tried none.
    """
    tried = {"decisions/retrieval_gain": ("gain", "gains"), "decisions/signal": ("signal", "signals")}
    return {
        DROPPED: 1 - totals["kept"] / totals["rollouts"],
        "engine/read": totals["read"],
        "engine/written": totals["written"],
        "tokens/lost": totals["lost"] / max(1, totals["lost"] + totals["trained"]),
        "decisions/retrieve": totals["retrieve"] / max(1, totals["decisions"]),
    } | {name: totals[total] / totals[count] for name, (total, count) in tried.items() if totals[count]}


def _part(name: str) -> Any:
    """Return a part of the reward as TRL calls it; `Rollouts` has computed it."""

    def part(parts: list[dict[str, float]], **_: Any) -> list[float]:
        return [each[name] for each in parts]

    part.__name__ = name
    return part


class StopAtBudget(TrainerCallback):
    """Stops a run when its engine has read and written ``budget`` tokens.

    They are added up from the logged metrics, which a resumed run has too: an entry has the mean of the generations
    since the entry before. A run that was killed after the checkpoint of its last step makes no other step.
    """

    def __init__(self, budget: int, updates: int):
        self._budget = budget
        self._updates = updates

    def on_log(self, args, state, control, **kwargs):
        spent, before = 0.0, 0
        for entry in state.log_history:
            if "engine/read" in entry:
                generations = (entry["step"] - before) / self._updates
                spent += generations * (entry["engine/read"] + entry["engine/written"])
                before = entry["step"]
        if spent >= self._budget:
            control.should_training_stop = True

    on_train_begin = on_log


class Collapsed(UserError):
    """A run has nothing left to learn from, so that more steps would leave the model as it is."""


class StopCollapsed(TrainerCallback):
    """Stops a run that has nothing to learn from: the last ``steps`` steps had no group with different rewards, or
    no entropy.

    Both are read from the logged metrics, which a resumed run has too.
    """

    def __init__(self, steps: int):
        self._steps = steps

    def on_log(self, args, state, control, logs=None, **kwargs):
        for name, is_dead, reason in (
            (DROPPED, lambda value: value == 1, "all rollouts of a question get the same reward"),
            ("entropy", lambda value: value < NO_ENTROPY, "the model writes the same text every time"),
        ):
            logged = [entry for entry in state.log_history if entry.get(name) is not None]
            alive = max((entry["step"] for entry in logged if not is_dead(entry[name])), default=0)
            if logged and state.global_step - alive >= self._steps:
                raise Collapsed(
                    f"step {state.global_step}: {reason} for {self._steps} steps (rl.collapse); see "
                    f"{Path(args.output_dir) / ROLLOUTS}, then lower lr or raise rl.temperature, or take other data"
                )


def question_rows(path: Path, tokenizer: Any, rewards: Rewards) -> tuple[Dataset, DataReport]:
    """Return a row for each question of a question set. The report counts the tokens of the questions.

    Raises UserError if a question lacks what the ``rewards`` need.
    """
    questions = load_questions(path, unanswerable="skip")
    rewards.check(questions)
    tokens = sum(len(ids) for ids in tokenizer([question.question for question in questions])["input_ids"])
    rows = Dataset.from_dict({"prompt": [question.model_dump_json() for question in questions]})
    return rows, DataReport(examples=len(questions), tokens=tokens)


def rl_trainer(recipe: TrainRecipe, checkpoints: Path, **data: Any) -> RolloutTrainer:
    """Return the trainer of Stage III, its model loaded, for the ``data`` of `build_trainer`.

    The rows are those of `question_rows`.

    Raises UserError if the retriever cannot be opened, if there are too few questions, or if the launcher shards
    the weights.
    """
    settings, sharding = recipe.rl, current_sharding()
    assert settings is not None
    if sharding.stage == 3 or sharding.fsdp:
        raise UserError(
            "stage rl: every process samples with the whole model, but the launcher shards its weights; use "
            "launch/accelerate/ddp.yaml or zero2.yaml"
        )
    rollouts = recipe.batch_size * recipe.gradient_accumulation * settings.updates
    questions = len(data["train_dataset"])
    if questions * settings.group < (total := rollouts * sharding.processes):
        raise UserError(
            f"data {recipe.data}: {questions} questions, but a generation of {total} rollouts takes "
            f"{total // settings.group}; give more questions or set a smaller global_batch"
        )
    retriever = AsyncRetriever(open_retriever(settings.index))
    shared = trainer_arguments(recipe, checkpoints)
    del shared["max_length"]
    shared["include_num_input_tokens_seen"] = "no"  # TRL counts the tokens of the rollouts itself
    if settings.layout == "tree":
        attention = attention_for_trees(model_config(recipe), recipe.attention)
        shared["model_init_kwargs"]["attn_implementation"] = attention
    arguments = GRPOConfig(
        **shared,
        num_generations=settings.group,
        steps_per_generation=recipe.gradient_accumulation * settings.updates,
        max_completion_length=recipe.max_tokens,
        temperature=settings.temperature,
        reward_weights=list(Rewards(settings.reward, settings.price).weights.values()),
        scale_rewards=settings.scale,
        loss_type=settings.loss,
        epsilon=settings.clip_low,
        epsilon_high=settings.clip_high,
        beta=settings.kl,
        disable_dropout=True,
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=settings.correction,
    )
    trainer = RolloutTrainer(recipe, retriever, checkpoints, **parts_for_trl(recipe, arguments), **data)
    if settings.budget:
        trainer.add_callback(StopAtBudget(settings.budget, settings.updates))
    if settings.collapse:
        trainer.add_callback(StopCollapsed(settings.collapse))
    return trainer
