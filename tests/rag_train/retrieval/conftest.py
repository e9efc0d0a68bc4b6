"""A small cross-encoder, for all tests of retrievers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.retrieval import bert, save_letters
from transformers import BertForSequenceClassification


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a small random cross-encoder."""
    directory = tmp_path_factory.mktemp("cross-encoder")
    torch.manual_seed(0)
    BertForSequenceClassification(bert()).save_pretrained(directory)
    save_letters(directory)
    return directory
