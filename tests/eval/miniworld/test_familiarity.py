"""The mini model's state tells known from unknown facts; that of a model that was not trained does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from rag_train.eval.miniworld.familiarity import familiarity
from rag_train.llm.checkpoint import load_tokenizer
from rag_train.miniworld.pretrain import SHIPPED
from rag_train.miniworld.world import World


@pytest.mark.slow
def test_the_state_of_the_mini_model_tells_known_from_unknown_facts(mini_world: World, tmp_path: Path):
    area, count = familiarity(SHIPPED / "base", mini_world, "dev")
    assert area > 0.75 and count > 200
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(SHIPPED / "base")).save_pretrained(tmp_path)
    load_tokenizer(str(SHIPPED / "base")).save_pretrained(tmp_path)
    assert abs(familiarity(tmp_path, mini_world, "dev")[0] - 0.5) < 0.15
