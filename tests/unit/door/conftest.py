"""Real virtual environments with the shim in them."""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest

from venvs import VERSIONS
from venvs import Venv
from venvs import build_wheel
from venvs import copy_source
from venvs import interpreter
from venvs import make_venv
from venvs import unpack


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is built from."""
    return copy_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def shimmed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Venv]:
    """Give the session's virtual environment of a Python version, with the shim in it. Not to be changed by a test."""

    @functools.cache
    def make(version: str) -> Venv:
        if interpreter(version) is None:
            pytest.skip(f"no Python {version} with venv on this machine")
        venv = make_venv(tmp_path_factory.mktemp(f"py{version}-") / "venv", version)
        unpack(wheel, venv.site)
        return venv

    return make


@pytest.fixture(params=VERSIONS)
def venv(request: pytest.FixtureRequest, shimmed: Callable[[str], Venv]) -> Venv:
    """A virtual environment with the shim, once for each Python version. Not to be changed by a test."""
    return shimmed(request.param)


@pytest.fixture
def own(wheel: Path, tmp_path: Path) -> Iterator[Venv]:
    """A virtual environment with the shim for one test alone, of the Python that runs the tests."""
    venv = make_venv(tmp_path / "venv", "{}.{}".format(*sys.version_info))
    unpack(wheel, venv.site)
    yield venv
    shutil.rmtree(venv.root, ignore_errors=True)
