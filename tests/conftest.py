"""What tests of several folders need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model and data set."""
    folder = tmp_path_factory.mktemp("tiny")
    script = Path(__file__).parents[1] / "scripts" / "tiny_model.py"
    subprocess.run([sys.executable, script, folder], check=True, capture_output=True)
    return folder
