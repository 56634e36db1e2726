"""Released distributions other than those of the test environment, fetched once into ``.cache/wheels``."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).parents[1] / ".cache" / "wheels"


def installed(*requirements: str) -> Path:
    """Install ``requirements``, without what they depend on, into a folder for ``PYTHONPATH``."""

    def fetch(target: Path) -> None:
        _pip("install", "--no-compile", "--target", str(target), *requirements)

    return _once("+".join(requirements), fetch)


def sources(requirement: str) -> Path:
    """Unpack the Python files of the wheel of ``requirement``: what can be read and imported, without its libraries."""

    def fetch(target: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            _pip("download", "--dest", folder, requirement)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target, [name for name in archive.namelist() if name.endswith((".py", "METADATA"))])

    return _once(f"{requirement}-sources", fetch)


def _once(name: str, fetch: object) -> Path:
    target = CACHE / name.replace("==", "-")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            partial = target.with_suffix(".partial")
            fetch(partial)  # type: ignore[operator]
            partial.rename(target)
    return target


def _pip(command: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", command, "-q", "--no-deps", *arguments], check=True)
