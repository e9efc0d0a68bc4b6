"""Model presets: their shapes are those of transformers' classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig

from rag_train.model_presets import PRESETS
from rag_train.training.memory import architecture

RELEASED = {
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama3.1-8b": 8_030_261_248,
    "llama3.3-70b": 70_553_706_496,
    "mistral-7b": 7_248_023_552,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma3-1b": 999_885_952,
}
"""Numbers of parameters of the released weights."""


@pytest.mark.parametrize("name", RELEASED)
def test_shapes_have_the_released_number_of_parameters(name: str):
    assert PRESETS[name].parameters() == RELEASED[name]


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-7b", "qwen3-8b", "mistral-7b", "gemma2-2b", "gemma3-1b"])
def test_sizes_are_those_of_the_classes_of_transformers(name: str, tmp_path: Path):
    """One model of each family, with two layers."""
    preset = PRESETS[name]
    short = replace(preset, layers=2)
    AutoConfig.for_model(short.family, **short.configuration()).save_pretrained(tmp_path)
    counted = architecture(str(tmp_path))
    assert (counted.parameters, counted.linear) == (short.parameters(), short.linear())
