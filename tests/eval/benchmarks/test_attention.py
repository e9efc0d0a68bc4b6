"""The comparison of `make bench-attention`, at small width."""

from __future__ import annotations

import pytest

from rag_train.eval.benchmarks import attention

SMALL = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_control_differs_far_more_than_the_choices(uncompiled: None, monkeypatch: pytest.MonkeyPatch):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    monkeypatch.setattr(attention, "WIDTH", attention.WIDTH | SMALL | heads)
    sliced, sdpa, flex, control = attention.compare("qwen3")
    assert control["attention"] == attention.CONTROL
    for row in (sliced, sdpa, flex):
        assert row["difference"] < 0.1 * control["difference"]
    assert sdpa["cosine"] > 0.99 > control["cosine"]
    assert attention.compare("gemma2")[1]["difference"] is None
