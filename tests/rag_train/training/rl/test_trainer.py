"""Stage rl: advantages of tokens, what is trained and what is dropped, learning, resuming and stopping."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.launching import launch
from support.rollouts import searched
from support.training import TOKENIZER, Killed, kill_at, recipe_in, same_weights, write

from rag_train.errors import UserError
from rag_train.llm.transformers import TransformersEngine
from rag_train.retrieval.index.bm25 import build_bm25
from rag_train.schema import Decision, Passage, Question, Step, Trajectory
from rag_train.training.build import build_trainer
from rag_train.training.plan import plan
from rag_train.training.recipe import LoraRecipe, RLRecipe, TrainRecipe
from rag_train.training.resume import identity_of
from rag_train.training.rl.policy import VLLMPolicy
from rag_train.training.rl.rewards import PARTS, Rewards
from rag_train.training.rl.rollouts import Branch, Rollout
from rag_train.training.rl.rows import Row, encode_rollout
from rag_train.training.rl.trainer import Collapsed, RolloutTrainer, question_rows, token_advantages
from rag_train.training.run import train
from rag_train.worlds.mini.world import World

QUESTIONS = [Question(id=str(i), question=f"Where was {i} born?", answers=["Rome"]) for i in range(16)]
EMPTY = Trajectory(question_id="", question="", strategy="")
COSTS: dict[str, Any] = {"reward": {"exact_match": 0}, "price": {"tokens": 0.01}}


@pytest.fixture(scope="module")
def world(work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the model of the fixture ``work``, questions (rl.jsonl) and an index."""
    path = tmp_path_factory.mktemp("rl")
    (path / "model").symlink_to(work / "model")
    write(path / "rl.jsonl", QUESTIONS)
    build_bm25([Passage(id="1", text="red fox")], path / "index")
    return path


def recipe_for(world: Path, output: Path, **keys: Any) -> TrainRecipe:
    """A recipe of 4 steps of 8 rollouts; keys that are not the recipe's go into its section rl."""
    section = {key: keys.pop(key) for key in list(keys) if key in RLRecipe.__dataclass_fields__}
    section = {"index": str(world / "index"), "instructions": False, "group": 4, "call_tokens": 16} | section
    keys = {"epochs": 0.5, "max_tokens": 128, "batch_size": 4, "gradient_accumulation": 2} | keys
    keys |= {"stage": "rl", "precision": "fp32", "rl": RLRecipe(**section)}
    return recipe_in(world, output, **keys)


def recipe_of_mini_world(
    world: World, model: Path, output: Path, questions: int, credit: str, **keys: Any
) -> TrainRecipe:
    """A recipe of one epoch on questions of the mini world, whose index is beside ``output``."""
    write(output.parent / "rl.jsonl", [q for q in world.questions("train") if q.hops == 2][:questions])
    build_bm25(world.corpus(), output.parent / "index")
    keys |= {"credit": credit, "scale": "none" if credit == "tree" else "group", "branches": 1, "call_tokens": 48}
    keys |= {"max_tokens": 512, "batch_size": 8, "epochs": 1}
    return replace(recipe_for(output.parent, output, **keys), model=str(model))


def made_of(row: Row, trajectory: Trajectory, reward: float, *branches: Branch) -> Rollout:
    parts = dict.fromkeys(PARTS, 0.0) | {"exact_match": reward}
    return Rollout(trajectory, reward, replace(row), 1, 1, list(branches), parts)


def rollout(reward: float, *branches: Branch, decisions: dict[int, int] | None = None) -> Rollout:
    row = Row([1], [2, 3, 4], [1, 0, 1], [-1.0, 0.0, -1.0], decisions or {})
    return Rollout(EMPTY, reward, row, 0, 0, list(branches))


def test_a_decision_has_the_difference_of_its_subtrees_and_other_tokens_that_of_the_rollout():
    """A tree by hand: at its first step the rollout did not search, which leads to 0 and 0, and searching to 1 and
    0.5; at the next one it decided well."""
    branch = Branch(0, taken=[0.0, 0.0], other=[1.0, 0.5])
    later = Branch(1, taken=[1.0], other=[0.5])
    group = [rollout(0.0, branch, later, decisions={0: 2, 1: 0}), rollout(1.0)]
    assert token_advantages(group[0], -0.5, group, 4).tolist() == [0.5, -0.5, -0.75, -0.5]
    assert token_advantages(group[1], 0.5, group, 3).tolist() == [0.5] * 3


@pytest.mark.parametrize("branches", [[], [Branch(0, taken=[1.0], other=[1.0])]])
def test_equal_rewards_give_no_advantage(branches: list[Branch]):
    group = [rollout(0.1, *branches, decisions={0: 0}), rollout(0.1), rollout(0.1)]
    assert not token_advantages(group[0], 1e-8, group, 3).any()


def hand_made(monkeypatch: pytest.MonkeyPatch, world: Path, folder: Path, made: list[Rollout], **keys: Any):
    """A trainer and its batch of the rollouts ``made``, in groups of two."""
    (checkpoints := folder / "checkpoints").mkdir()
    recipe = recipe_for(world, folder / "out", group=2, **keys)
    rows, _ = question_rows(recipe.data, TOKENIZER, Rewards({}, {}))
    trainer = build_trainer(recipe, rows, TOKENIZER, checkpoints)

    async def sample(questions: list[Question], seed: str, first: int) -> list[Rollout]:
        return made

    monkeypatch.setattr(trainer._rollouts, "sample", sample)
    assert trainer.model is not None
    trainer.model.train()
    inputs = [{"prompt": question.model_dump_json()} for question in QUESTIONS[: len(made)]]
    return trainer, trainer._generate_and_score_completions(inputs)


def test_only_sampled_tokens_of_groups_with_different_rewards_have_a_gradient(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The gradient by the log-probability of each token, in one pass over two groups of two rollouts."""
    row = encode_rollout(TOKENIZER, searched(), 999)
    assert 0 in row.trained[1:-1]
    made = [made_of(row, EMPTY, reward) for reward in (1.0, 0.0, 0.0, 0.0)]
    trainer, batch = hand_made(monkeypatch, world, tmp_path, made)
    logprobs = torch.full_like(batch["completion_ids"], -1.0, dtype=torch.float32, requires_grad=True)
    computed = (logprobs, torch.zeros_like(logprobs), None)
    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: computed)
    trainer.current_gradient_accumulation_steps = 2
    del batch["old_per_token_logps"]
    trainer.compute_loss(trainer.model, batch).backward()
    trained = torch.zeros_like(logprobs, dtype=torch.bool)
    trained[:2, : len(row.trained)] = torch.tensor(row.trained, device=trained.device) == 1
    assert logprobs.grad is not None and torch.equal(logprobs.grad != 0, trained)
    assert (logprobs.grad[0] <= 0).all() and (logprobs.grad[1] >= 0).all()
    assert trainer._metrics["train"]["groups/dropped"] == [0.5]
    assert batch["num_items_in_batch"] == 2 * sum(row.trained)


def test_gap_between_engine_and_trainer_is_logged_and_its_weight_limited(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The engine of these rollouts claims log-probabilities that the trainer's model does not have."""
    row = encode_rollout(TOKENIZER, searched(), 999)
    row.logprobs = [-99.0 * flag for flag in row.trained]
    made = [made_of(row, EMPTY, reward) for reward in (0.0, 1.0)]
    trainer, batch = hand_made(monkeypatch, world, tmp_path, made, correction=1.5)
    weights = batch["importance_sampling_ratio"][:, : len(row.trained)]
    assert set(weights[:, torch.tensor(row.trained) == 1].unique().tolist()) == {1.5}
    [gap] = trainer._metrics["train"]["sampling/sampling_logp_difference/mean"]
    assert gap > 50


@pytest.mark.parametrize(
    ("decision", "taken", "signal", "gain"),
    [("retrieve", (0, 1), 0, 0), ("retrieve", (1, 1), 0.25, 0.5), ("parametric", (1, 1), 0.25, -0.5)],
)
def test_measures_of_the_decisions_are_without_the_noise_of_single_rollouts(
    world: Path, tmp_path: Path, monkeypatch, decision: str, taken: tuple[int, int], signal: float, gain: float
):
    """The other decision is right half of the time, and so is the decision taken, or always: all equally likely
    outcomes of two rollouts of each."""
    trajectory = EMPTY.model_copy(update={"steps": [Step(subquery="?", decision=Decision(decision))]})
    row = encode_rollout(TOKENIZER, searched(), 999)
    coins = product(taken, taken, (0, 1), (0, 1))
    made = [made_of(row, trajectory, 0.0, Branch(0, [a, b], [c, d])) for a, b, c, d in coins]
    trainer, _ = hand_made(monkeypatch, world, tmp_path, made)
    found = trainer._metrics["train"]
    assert (found["decisions/signal"], found["decisions/retrieval_gain"]) == ([signal], [gain])


def metrics(output: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in row if "time" not in name} for row in rows if "loss" in row]


@pytest.mark.parametrize(
    "keys", [{}, {"lora": LoraRecipe(r=4), "gradient_checkpointing": True}, {"loss": "grpo", "kl": 0.1}]
)
@pytest.mark.slow
def test_tree_layout_trains_as_trl_does(world: Path, tmp_path: Path, keys: dict[str, Any]):
    found = {}
    for layout in ("rollouts", "tree"):
        recipe = recipe_for(world, tmp_path / layout, **COSTS, **keys, layout=layout)
        train(replace(recipe, lr=1e-3))
        found[layout] = metrics(tmp_path / layout)
    assert any(row["grad_norm"] > 0 for row in found["tree"])
    for name in ("reward", "loss", "grad_norm", "sampling/importance_sampling_ratio/mean"):
        theirs = [row[name] for row in found["rollouts"]]
        assert [row[name] for row in found["tree"]] == pytest.approx(theirs, rel=1e-3, abs=1e-5), name


@pytest.mark.slow
def test_goes_on_with_an_adapter_which_is_the_reference(world: Path, tmp_path: Path, monkeypatch):
    """TRL keeps the starting adapter for the divergence; a killed run has it again, the result does not."""
    keys: dict[str, Any] = {"lora": LoraRecipe(r=4), "save_steps": 2, "epochs": 1, "kl": 0.1}
    first = recipe_for(world, tmp_path / "first", **COSTS, **keys)
    train(replace(first, lr=1e-2))
    whole = replace(first, model=str(tmp_path / "first"), output_dir=str(tmp_path / "whole"), lr=1e-3)
    expected = train(whole)
    assert metrics(tmp_path / "whole")[0]["kl"] == pytest.approx(0, abs=1e-6)
    killed = replace(whole, output_dir=str(tmp_path / "killed"))
    kill_at(monkeypatch, killed, 5)
    resumed = train(killed)
    assert (resumed.resumed_from, resumed.steps) == (4, expected.steps)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
    start, once, again = (
        load_file(tmp_path / name / "adapter_model.safetensors") for name in ("first", "whole", "killed")
    )
    assert start.keys() == once.keys() and not (tmp_path / "whole/ref").exists()
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert any(not torch.equal(start[name], once[name]) for name in once)


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.slow
def test_resumed_run_equals_uninterrupted_run(world: Path, tmp_path: Path, updates: int, monkeypatch):
    """The rollouts after the checkpoint are sampled again, with the same seeds and weights."""
    whole = recipe_for(world, tmp_path / "whole", **COSTS, save_steps=2, updates=updates, epochs=1)
    expected = train(whole)
    recipe = replace(whole, output_dir=str(tmp_path / "killed"))
    kill_at(monkeypatch, recipe, 5)
    resumed = train(recipe)
    assert (resumed.resumed_from, resumed.steps) == (4, expected.steps) == (4, 8)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
    assert same_weights(tmp_path / "whole", tmp_path / "killed")
    assert any(row["grad_norm"] > 0 for row in metrics(tmp_path / "whole"))


class CopiedPolicy(TransformersEngine):
    """An engine with a copy of the weights, as vLLM has, whose samples are the same in every run."""

    async def update(self, model: Any, step: int) -> None:
        self.model.load_state_dict(model.state_dict())


@pytest.mark.slow
def test_rollouts_made_ahead_are_those_of_the_weights_before(world: Path, tmp_path: Path, monkeypatch):
    """And a run resumed in its second epoch has those that were begun before its checkpoint, in that epoch's order.

    The next epoch's order is not foreseen.
    """
    monkeypatch.setattr(VLLMPolicy, "start", lambda recipe, folder: CopiedPolicy.start(recipe.model))
    keys = {"save_steps": 2, "epochs": 2, "engine": "vllm", "ahead": True, "group": 8}
    whole = recipe_for(world, tmp_path / "whole", **COSTS, **keys)
    expected = train(whole)
    rows = metrics(tmp_path / "whole")
    gaps = [row["sampling/sampling_logp_difference/mean"] for row in rows]
    assert len(gaps) == expected.steps == 32
    assert rows[0]["learning_rate"] == 0  # the second step has the first weights, too
    assert max(gaps.pop(step) for step in (16, 1, 0)) < 1e-5
    assert sum(gap > 1e-4 for gap in gaps) > 25  # 0 where all rewards were equal
    recipe = replace(whole, output_dir=str(tmp_path / "killed"))
    kill_at(monkeypatch, recipe, 21)
    assert train(recipe).resumed_from == 20
    assert metrics(tmp_path / "killed") == rows


@pytest.mark.parametrize(
    ("credit", "keys", "adapters"),
    [
        pytest.param("trajectory", {}, False, marks=pytest.mark.slow),
        pytest.param("tree", {}, False, marks=pytest.mark.slow),
        pytest.param("tree", {"engine": "vllm"}, False, marks=pytest.mark.engine),
        pytest.param("tree", {"engine": "vllm", "lora": LoraRecipe(r=8)}, False, marks=pytest.mark.engine),
        pytest.param("tree", {"engine": "vllm", "lora": LoraRecipe(r=8)}, True, marks=pytest.mark.engine),
    ],
)
def test_a_price_lowers_the_retrieval_rate(
    mini_world: World,
    mini_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    credit: str,
    keys: dict[str, Any],
    adapters: bool,
):
    """Answers have no value, and a search has a price: the mini model, which decides at random, stops searching.

    Engine and trainer agree on the log-probabilities at every step: the engine has the weights of that step, or the
    adapter, as on GPUs.
    """
    monkeypatch.setattr("rag_train.training.rl.policy.serves_adapters", lambda: adapters)
    costs = {"reward": {"exact_match": 0}, "price": {"retrievals": 1}}
    recipe = recipe_of_mini_world(mini_world, mini_model, tmp_path / "out", 24, credit, **costs, **keys)
    lr = 1e-2 if recipe.lora else 1e-3
    result = train(replace(recipe, lr=lr, schedule="constant_with_warmup", warmup_ratio=0))
    rows = metrics(tmp_path / "out")
    assert result.steps == len(rows) == 6
    searched = [row["decisions/retrieve"] for row in rows]
    assert searched[0] > 0.2 and sum(searched[-2:]) / 2 < searched[0] / 2
    assert rows[-1]["reward"] > rows[0]["reward"] == pytest.approx(-rows[0]["rewards/retrievals/mean"])
    assert max(row["sampling/sampling_logp_difference/mean"] for row in rows) < 1e-4
    assert ("decisions/retrieval_gain" in rows[0]) == (credit == "tree")
    assert rows[0]["engine/read"] > rows[0]["engine/written"] > 0


@pytest.mark.parametrize(
    ("config", "engine"),
    [
        ("ddp", "transformers"),
        pytest.param("ddp", "vllm", marks=pytest.mark.release),
        pytest.param("zero2", "transformers", marks=pytest.mark.release),
    ],
)
@pytest.mark.slow
def test_two_processes_train_as_one(mini_world: World, mini_model: Path, tmp_path: Path, config: str, engine: str):
    """The rollouts, their credit and the loss are those of one process; half of them are made by either process."""
    keys = {"price": {"retrievals": 0.5}, "engine": engine, "gradient_accumulation": 1, "global_batch": 16}
    recipe = recipe_of_mini_world(mini_world, mini_model, tmp_path / "two", 12, "tree", **keys)
    recipe = replace(recipe, lr=1e-3)
    train(replace(recipe, output_dir=str(tmp_path / "one")))
    ended = launch(config, recipe, tmp_path)
    assert ended.returncode == 0, ended.stderr
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert len(one) == len(two) == 3
    decisions = ("decisions/retrieve", "decisions/retrieval_gain")
    for name in ("reward", "engine/read", "engine/written", *decisions, "loss"):
        values = [row[name] for row in one]
        assert [row[name] for row in two] == pytest.approx(values, rel=1e-3, abs=1e-5), name
    assert any(row["grad_norm"] > 0 for row in two)


def test_processes_share_whole_groups(world: Path, tmp_path: Path):
    recipe = recipe_for(world, tmp_path / "out", global_batch=12, gradient_accumulation=1)
    with pytest.raises(UserError, match=r"rl.group=4 does not divide the 6 rollouts of each of 2 .*=16$"):
        recipe.on(2)


@pytest.mark.parametrize(("updates", "logging_steps"), [(1, 1), (2, 2)])
@pytest.mark.slow
def test_a_run_ends_when_its_budget_is_spent(world: Path, tmp_path: Path, updates: int, logging_steps: int):
    """The logged tokens are those of a mean generation since the last entry."""
    recipe = recipe_for(
        world, tmp_path / "out", **COSTS, epochs=1, updates=updates, logging_steps=logging_steps, save_steps=2
    )
    whole = train(recipe)
    rows = metrics(tmp_path / "out")
    spent = [(row["engine/read"] + row["engine/written"]) * logging_steps / updates for row in rows]
    assert whole.steps == 8 and len(spent) == 8 // logging_steps
    budget = round(sum(spent[: len(spent) // 2]))  # reached by the logged steps of the first half
    rl = replace(recipe.rl or RLRecipe(index=""), budget=budget)
    assert train(replace(recipe, output_dir=str(tmp_path / "half"), rl=rl)).steps == 4
    rl = replace(rl, budget=budget + 1)
    assert train(replace(recipe, output_dir=str(tmp_path / "more"), rl=rl)).steps == 4 + logging_steps


@pytest.mark.parametrize(("budget", "steps"), [(100, 0), (101, 1)])
def test_a_run_killed_after_its_last_checkpoint_makes_no_other_step(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int, steps: int
):
    """The steps before the checkpoint have spent 100 tokens."""
    begun = []

    def roll_out(*_: Any) -> None:
        begun.append(True)
        raise Killed

    monkeypatch.setattr(RolloutTrainer, "_roll_out", roll_out)
    recipe = recipe_for(world, tmp_path / "out", budget=budget)
    rows, _ = question_rows(recipe.data, TOKENIZER, Rewards({}, {}))
    trainer = build_trainer(recipe, rows, TOKENIZER, tmp_path / "checkpoints")
    trainer.state.global_step, trainer.state.train_batch_size = 2, recipe.batch_size
    trainer.state.log_history = [{"step": step, "engine/read": 40, "engine/written": 10} for step in (1, 2)]
    trainer.create_optimizer_and_scheduler(4)
    trainer._save_checkpoint(trainer.model, None)
    with suppress(Killed):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoints/checkpoint-2"))
    assert (trainer.state.global_step, len(begun)) == (2, steps)


@pytest.mark.slow
def test_a_reward_of_the_users_own_is_logged_trained_and_belongs_to_the_run(
    world: Path, tmp_path: Path, monkeypatch
):
    part = "def length(question, trajectory):\n    return "
    (tmp_path / "my_rewards.py").write_text(f"{part}len(str(trajectory.answer))\n")
    monkeypatch.syspath_prepend(tmp_path)
    recipe = recipe_for(world, tmp_path / "out", reward={"my_rewards:length": 0.5}, save_steps=2)
    kill_at(monkeypatch, recipe, 3)
    first = metrics(tmp_path / "out")[0]
    assert first["reward"] == pytest.approx(0.5 * first["rewards/my_rewards:length/mean"]) and first["reward"] > 0
    monkeypatch.delitem(sys.modules, "my_rewards")
    (tmp_path / "my_rewards.py").write_text(f"{part}1\n")
    with pytest.raises(UserError, match="holds a run that differs in the contents of rewards"):
        train(recipe)


@pytest.mark.slow
def test_the_texts_of_the_users_prompts_belong_to_the_run(world: Path, tmp_path: Path):
    texts = []
    for text in ("One.", "Two."):
        (tmp_path / "deeprag.txt").write_text(text)
        recipe = recipe_for(world, tmp_path / "out", instructions=True, prompts=str(tmp_path))
        texts.append(identity_of(recipe)["prompts"])
    assert texts == [{"deeprag": "One."}, {"deeprag": "Two."}]


@pytest.mark.slow
def test_a_run_without_different_rewards_stops(world: Path, tmp_path: Path):
    """The untrained model never answers right, so every reward is 0."""
    problem = r"^step 2: all rollouts of a question get the same reward for 2 steps"
    with pytest.raises(Collapsed, match=problem) as caught:
        train(recipe_for(world, tmp_path / "out", collapse=2))
    path = tmp_path / "out/checkpoints/rollouts.jsonl"
    assert str(path) in str(caught.value)
    rollouts = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rollouts) == 8 and {each["reward"] for each in rollouts} == {0.0}
    assert all(each["text"].startswith("Question: Where was ") for each in rollouts)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rl": None}, "rl: missing; stage rl searches while it trains, set at least rl.index"),
        ({"eval_data": Path("x")}, "eval_data: not possible in stage rl, which prompts as"),
        ({"chat": False}, "chat: not possible in stage rl"),
        ({"rl": RLRecipe(index="", ahead=True, group=2)}, "rl.ahead: engine transformers .*; set rl.engine=vllm"),
        ({"global_batch": 6}, "rl.group=4: does not divide the 6 rollouts of a step; set global_batch=8"),
        ({"rl": RLRecipe(index="", updates=3, group=2)}, r"rl.updates=3: .*; set save_steps=501"),
        ({"rl": RLRecipe(index="", strategy="search-r1", credit="tree")}, "rl.strategy=search-r1 has no decisions"),
        ({"rl": RLRecipe(index="", credit="tree", group=2)}, "rl.credit=tree: .*; set rl.scale=none"),
        ({"stage": "dpo"}, "rl: stage is dpo; remove the section rl or set stage: rl"),
    ],
)
def test_rejects_keys_that_do_not_fit_together(world: Path, tmp_path: Path, keys: dict, message: str):
    recipe = recipe_for(world, tmp_path / "out")
    with pytest.raises(UserError, match=message):
        replace(recipe, **({"gradient_accumulation": 1} | keys))


def test_refuses_few_questions_and_sharded_weights(world: Path, tmp_path: Path, monkeypatch):
    few = recipe_for(world, tmp_path / "out", global_batch=80, gradient_accumulation=1)
    with pytest.raises(UserError, match=r"16 questions, but a generation of 80 rollouts takes 20; give more"):
        train(few)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    recipe = recipe_for(world, tmp_path / "out")
    rows, _ = question_rows(recipe.data, TOKENIZER, Rewards({}, {}))
    with pytest.raises(UserError, match=r"stage rl: every process samples with the whole model.* use launch/accel"):
        build_trainer(recipe, rows, TOKENIZER, tmp_path)


def test_plan_counts_whole_generations_and_the_longest_rollouts(world: Path, tmp_path: Path):
    recipe = recipe_for(world, tmp_path / "out")
    rows, report = question_rows(recipe.data, TOKENIZER, Rewards({}, {}))
    planned = plan(recipe, rows, report)
    assert planned.steps == 4
    assert planned.epoch.largest[0].tokens == recipe.batch_size * recipe.max_tokens
    assert "4 steps of 8 rollouts; checkpoints" in planned.line()
    labels = [row[0] for row in planned.table().rows]
    assert "optimizer steps" in labels and not any(label.startswith("time") for label in labels)
