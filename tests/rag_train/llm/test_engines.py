"""The real engines on a real checkpoint: their outputs agree, and synthesis and inference run on them."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import HfApi

from rag_train.answers import exact_match
from rag_train.data_synth.deeprag.search import SearchConfig
from rag_train.data_synth.methods.deeprag import DeepRAGData, DeepRAGRecipe
from rag_train.errors import UserError
from rag_train.eval.matrix.answers import Answers
from rag_train.formats import deeprag
from rag_train.llm.base import Sampling
from rag_train.llm.checkpoint import check_adapter, check_checkpoint
from rag_train.llm.transformers import TransformersEngine
from rag_train.llm.vllm import VLLMEngine
from rag_train.retrieval.batching import AsyncRetriever
from rag_train.retrieval.index.bm25 import BM25Index
from rag_train.schema import Decision
from rag_train.strategies.base import Kit
from rag_train.worlds.mini.world import World

LINE = Sampling(max_tokens=24, stop=("\n",), logprobs=3)


@pytest.mark.engine
def test_vllm_agrees_with_transformers_and_runs_synthesis_and_inference(
    mini_world: World, mini_model: Path, mini_engine: VLLMEngine, runner: asyncio.Runner, tmp_path: Path
):
    questions = [q for q in mini_world.questions("train") if q.hops == 2][:24]

    async def go() -> None:
        reference = TransformersEngine.start(str(mini_model))
        outside = f"Who is <|endoftext|>{questions[0].question}"  # a control token in it is text for both
        for asked in (outside, *(question.question for question in questions[:6])):
            prompt = deeprag.question_prompt(asked)
            a, b = await asyncio.gather(mini_engine.complete(prompt, LINE), reference.complete(prompt, LINE))
            assert (a.text, a.stop, a.usage) == (b.text, b.stop, b.usage)
            assert a.logprobs[0][0].logprob == pytest.approx(b.logprobs[0][0].logprob, abs=1e-3)
        choice = await mini_engine.complete("Question: x\n", Sampling(choice=("yes", "no")))
        assert choice.text in ("yes", "no")
        with pytest.raises(ValueError, match="exceed the context"):
            await mini_engine.complete("x " * 3000, LINE)

        retriever = AsyncRetriever(BM25Index.build(mini_world.corpus()))
        recipe = DeepRAGRecipe(
            stage="sft",
            questions=[],
            index="",
            model=str(mini_model),
            output=str(tmp_path / "sft.jsonl"),
            instructions=False,
            search=SearchConfig(),
        )
        summary = await DeepRAGData(recipe, questions, mini_engine, retriever).write()
        assert summary.records == summary.counts["solved"] > 0
        for line in (tmp_path / "sft.jsonl").read_text().splitlines():
            record = json.loads(line)
            gold = next(q for q in questions if q.id == record["id"])
            assert exact_match(record["answer"], gold.answers)

        for name in ("direct", "rag", "deeprag", "deeprag-retrieve", "deeprag-parametric"):
            kit = Kit(mini_engine, retriever, instructions=False)
            got = await Answers(tmp_path, name, {}).ask(kit, questions[:8])
            assert [t.question_id for t in got] == [q.id for q in questions[:8]]
            assert all(t.calls and not t.error for t in got)
            assert sum(t.answer is not None for t in got) >= 4
            if name == "deeprag-retrieve":
                assert all(step.passages for t in got for step in t.steps)
            if name == "deeprag-parametric":
                assert not any(t.retrievals for t in got)
            if name == "deeprag":
                # The recorded probability belongs to the decision that was made (greedy decoding).
                for step in (step for t in got for step in t.steps):
                    assert step.retrieve_probability is not None
                    assert (step.retrieve_probability > 0.5) == (step.decision is Decision.RETRIEVE)

    runner.run(go())


def test_rejects_strangers_checkpoints_before_an_engine_reads_them(mini_model: Path, tmp_path: Path):
    shutil.copytree(mini_model, tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    foreign = config | {"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}
    for changed, message in (
        (foreign, "Python code of its own"),
        ({"vocab_size": "many"}, "not a model config"),
        ([], "not a"),
    ):
        (tmp_path / "model/config.json").write_text(json.dumps(changed))
        with pytest.raises(UserError, match=message):
            check_checkpoint(str(tmp_path / "model"))
    (tmp_path / "model/config.json").write_text(json.dumps(config | {"auto_map": {}}))
    check_checkpoint(str(tmp_path / "model"))  # of an architecture that transformers has
    weights = (tmp_path / "model/model.safetensors").read_bytes()
    for cut in (0, 5, 1000, len(weights) - 1):
        (tmp_path / "model/model.safetensors").write_bytes(weights[:cut])
        with pytest.raises(UserError, match=r"model\.safetensors: .*copy or save the model again") as caught:
            check_checkpoint(str(tmp_path / "model"))
        assert "\n" not in str(caught.value)


def test_rejects_invalid_checkpoints(mini_model: Path, tmp_path: Path):
    with pytest.raises(UserError, match="not found; give a checkpoint directory or a hub name"):
        check_checkpoint(str(tmp_path / "gone"))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((mini_model / name).read_bytes())
    check_checkpoint(str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    with pytest.raises(UserError, match="the model's vocabulary has 100; copy the tokenizer files"):
        check_checkpoint(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot read its tokenizer"):
        check_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    "config",
    [
        "[" * 10**5,
        "[]",
        "{}",
        '{"r": "many"}',
        '{"r": 8, "rank_pattern": []}',
        '{"r": 8, "megatron_config": {"a": 1}}',
    ],
)
def test_rejects_strangers_adapters_in_one_line(tmp_path: Path, config: str):
    (tmp_path / "adapter_config.json").write_text(config)
    with pytest.raises(UserError) as caught:
        check_adapter(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["hub:", "no such/model", "some/model"])
def test_a_model_that_the_hub_does_not_give_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, name: str):
    asked = []

    def gone(self: object, model: str, revision: str | None, timeout: float) -> None:
        asked.append(timeout)
        raise OSError("404: Repository Not Found\nfor url")

    monkeypatch.setattr(HfApi, "model_info", gone)
    with pytest.raises(UserError, match="the Hub does not give it") as caught:
        check_checkpoint(name)
    assert "\n" not in str(caught.value) and len(asked) <= 1


@pytest.mark.engine
def test_seeded_samples_of_long_prompts_do_not_end_the_engine(mini_engine: VLLMEngine, runner: asyncio.Runner):
    """Together the prompts are longer than what vLLM reads in one step, and so some would be read in parts."""

    async def go() -> list[str]:
        prompts = [f"Question: {i} {'Who is the star of Dulen? ' * 40}" for i in range(40)]
        sampling = Sampling(max_tokens=4, temperature=1.0, seed=7)
        return [done.text for done in await asyncio.gather(*(mini_engine.complete(p, sampling) for p in prompts))]

    assert runner.run(go()) == runner.run(go())
