"""The transformers engine: seeded samples that do not depend on their batch."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_train.llm.base import Completion, Sampling
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.llm.transformers import SeededNoise, TransformersEngine

PROMPTS = ["Question: who?\n", "Follow up: when was it?\n", "x"]


def complete(engine: TransformersEngine, prompts: list[str], seeds: list[int | None]) -> list[Completion]:
    async def go() -> list[Completion]:
        samplings = [Sampling(max_tokens=12, temperature=0.8, seed=seed, logprobs=1) for seed in seeds]
        return await asyncio.gather(*map(engine.complete, prompts, samplings))

    return asyncio.run(go())


def test_a_seeded_sample_does_not_depend_on_its_batch(work: Path):
    engine = TransformersEngine.start(str(work / "model"), dtype="float32")
    state = torch.get_rng_state()
    alone = [complete(engine, [prompt], [seed])[0] for seed, prompt in enumerate(PROMPTS)]
    together = complete(engine, PROMPTS, [0, 1, 2])
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    other = complete(engine, PROMPTS[:1] * 2, [7, 8])
    assert len({each.token_ids for each in (*other, alone[0])}) == 3
    assert torch.equal(torch.get_rng_state(), state)


def test_log_probabilities_are_those_at_the_temperature(work: Path):
    engine = TransformersEngine.start(str(work / "model"), dtype="float32")
    [drawn] = complete(engine, PROMPTS[:1], [3])
    ids = engine.tokenizer(PROMPTS[0])["input_ids"]
    with torch.no_grad():
        logits = engine.model(torch.tensor([[*ids, *drawn.token_ids]])).logits[0, len(ids) - 1 : -1]
    wanted = torch.log_softmax(logits / 0.8, -1).gather(1, torch.tensor(drawn.token_ids)[:, None])[:, 0]
    assert [token.logprob for token in drawn.chosen] == pytest.approx(wanted.tolist(), abs=1e-4)


def test_prompts_are_padded_without_a_padding_token(work: Path):
    engine = TransformersEngine.start(str(work / "model"), dtype="float32")
    padded = complete(engine, PROMPTS, [0, 1, 2])
    tokenizer = load_tokenizer(str(work / "model"))
    tokenizer.pad_token = None
    bare = TransformersEngine(engine.model, tokenizer, "bare")
    assert complete(bare, PROMPTS, [0, 1, 2]) == padded


def test_a_text_that_any_end_of_the_model_ends_is_whole(work: Path):
    engine = TransformersEngine.start(str(work / "model"), dtype="float32")
    [cut] = complete(engine, PROMPTS[:1], [0])
    assert cut.truncated and cut.token_ids[2] not in cut.token_ids[:2]
    engine.model.generation_config.eos_token_id = [engine.tokenizer.eos_token_id, cut.token_ids[2]]
    [whole] = complete(TransformersEngine(engine.model, engine.tokenizer, "ends"), PROMPTS[:1], [0])
    assert not whole.truncated and whole.token_ids == cut.token_ids[:3]


@pytest.mark.slow
@settings(max_examples=5)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=4))
def test_the_most_probable_token_with_noise_is_a_sample(scores: list[float]):
    rows = torch.tensor(scores).repeat(4000, 1)
    drawn = SeededNoise(range(4000), torch.device("cpu"))(torch.empty(0), rows).argmax(1)
    shares = Counter(drawn.tolist())
    for token, probability in enumerate(torch.softmax(torch.tensor(scores), 0).tolist()):
        assert shares[token] / 4000 == pytest.approx(probability, abs=0.04)
