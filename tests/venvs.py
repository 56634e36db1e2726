"""Real interpreters and real virtual environments with the shim in them, for tests and scripts."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
#: What a wheel is built from.
SOURCES = ("xpu_sitecustomize", "src", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")


def clean_environment(**extra: str) -> dict[str, str]:
    """Return our environment without what would change a child interpreter, and with `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VERL_XPU", "XPU_EMU"))}
    return kept | extra


@functools.cache
def interpreter(version: str) -> str | None:
    """Return the executable of Python `version` ("3.12"), from PATH or pyenv; None where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    on_path = (Path(folder) / f"python{version}" for folder in os.environ.get("PATH", "").split(os.pathsep))
    for executable in (*found, *on_path):
        # a pyenv shim of a version that isn't active exists and fails; Debian's Python may lack venv
        probe = [str(executable), "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"]
        if executable.is_file() and _output(probe) == version:
            return str(executable)
    return None


def _output(command: list[str]) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment())
    return done.stdout.strip() if done.returncode == 0 else None


@dataclass(frozen=True)
class Done:
    """What a process left."""

    code: int
    out: str
    err: str

    def lines(self) -> list[str]:
        return self.out.splitlines()

    def one_line(self, *words: str) -> None:
        """Assert that stderr is one line of ours, with these words in it."""
        (line,) = self.err.splitlines()
        assert line.startswith("verl-xpu-shim: "), line
        for word in words:
            assert word in line, line


@dataclass(frozen=True)
class Venv:
    """A virtual environment."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @functools.cached_property
    def site(self) -> Path:
        return next(self.root.glob("lib/python3.*/site-packages"))

    def __call__(
        self, *arguments: str | Path, cwd: Path | None = None, code: int | None = 0, env: dict[str, str] | None = None
    ) -> Done:
        """Run its Python; fail the test where the exit status is not `code` (None: any)."""
        return execute(self.python, *arguments, cwd=cwd or self.root, code=code, env=env)

    def run(self, body: str, *flags: str, cwd: Path | None = None, code: int | None = 0, **env: str) -> Done:
        """Run a piece of code."""
        return self(*flags, "-c", textwrap.dedent(body), cwd=cwd, code=code, env=env)


def execute(
    *command: str | Path, cwd: Path, code: int | None = 0, env: dict[str, str] | None = None, timeout: float = 240
) -> Done:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=clean_environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if code is not None:
        assert done.returncode == code, f"exit status {done.returncode} of {command}\n{done.stdout}\n{done.stderr}"
    return Done(done.returncode, done.stdout, done.stderr)


def make_venv(at: Path, version: str, *options: str) -> Venv:
    """Make a virtual environment, without pip unless `options` say otherwise."""
    python = interpreter(version)
    if python is None:
        raise LookupError(f"no Python {version} with venv on this machine")
    execute(python, "-m", "venv", *(options or ("--without-pip",)), at, cwd=at.parent)
    return Venv(at)


def copy_source(to: Path) -> Path:
    """Copy what the package is built from, so that building leaves nothing in the checkout."""
    for name in SOURCES:
        here = ROOT / name
        if here.is_dir():
            shutil.copytree(here, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif here.exists():
            shutil.copy(here, to)
    return to


def build_wheel(source: Path, into: Path) -> Path:
    """Build the wheel as pip does, with the Python that runs this."""
    command = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", into, source)
    execute(*command, cwd=into, env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    return next(into.glob("*.whl"))


def unpack(wheel: Path, into: Path) -> None:
    """Install as an installer that compiles nothing does."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)
