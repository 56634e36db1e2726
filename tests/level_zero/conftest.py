from __future__ import annotations

from pathlib import Path

import pytest

from . import stub


@pytest.fixture(scope="session")
def level_zero(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both forms of the stub driver, compiled now."""
    folder = tmp_path_factory.mktemp("level_zero")
    stub.build(folder)
    return folder


@pytest.fixture(params=list(stub.ways()))
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)
