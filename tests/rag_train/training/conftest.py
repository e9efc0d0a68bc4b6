import pytest
import torch


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the machine's GPUs from a test of what happens without one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
