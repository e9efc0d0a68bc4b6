"""A large evaluation matrix with its page, for all tests of reports."""

from __future__ import annotations

import pytest
from support.matrices import Made


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("matrix"))
