"""An interpreter start: what it loads, how it is switched off, and what it survives."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from venvs import Venv
from venvs import execute
from venvs import make_venv

from .test_hook import write

STATE = """
import sys
print(*(getattr(finder, '__name__', type(finder).__name__) for finder in sys.meta_path))
print(*sorted(name for name in sys.modules if 'xpu' in name))
"""
STOCK = ["BuiltinImporter", "FrozenImporter", "PathFinder"]
ON = ["_xpu_sitecustomize", *STOCK]


def finders(venv: Venv, *flags: str, cwd: Path | None = None, **env: str) -> list[str]:
    done = venv.run(STATE, *flags, cwd=cwd, **env)
    assert done.err == ""
    return done.lines()[0].split()


def test_a_start_loads_one_module_and_nothing_else(venv: Venv) -> None:
    code = "import sys; print(*sorted(sys.modules))"
    bare = set(venv.run(code, "-S").out.split()) | set(venv.run(code, VERL_XPU_SHIM="0").out.split())
    assert set(venv.run(code).out.split()) - bare == {"_xpu_sitecustomize"}
    assert finders(venv) == ON


@pytest.mark.parametrize("value", ["0", "off", "OFF", " no ", "false", "False"])
def test_off(venv: Venv, value: str) -> None:
    assert finders(venv, VERL_XPU_SHIM=value) == STOCK


@pytest.mark.parametrize("value", ["", "1", "on", "yes", "00"])
def test_on(venv: Venv, value: str) -> None:
    assert finders(venv, VERL_XPU_SHIM=value) == ON


def test_off_is_off_for_who_asks(venv: Venv) -> None:
    body = """
        import sys, xpu_sitecustomize as door
        before = list(sys.meta_path)
        assert not door.install() and not door.is_installed() and door.entered is None
        door.watch('colorsys', print)
        import colorsys
        assert sys.meta_path == before
    """
    done = venv.run(body, VERL_XPU_SHIM="0")
    assert (done.out, done.err) == ("", "")


def test_says_how_it_came_in(venv: Venv) -> None:
    code = "import xpu_sitecustomize as door; print(door.entered); door.uninstall(); print(door.entered)"
    assert venv.run(code).lines() == ["pth", "None"]


# --- what it survives -------------------------------------------------------------------------------------------------

FAKE_VERL = {"verl/__init__.py": "print('verl is there')", "m.py": ""}


@pytest.fixture(scope="session")
def with_pip(shimmed: Callable[[str], Venv], tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Venv]:
    """Give copies of a site-packages that has both pip and the shim, as venvs of the Python that runs the tests."""
    version = "{}.{}".format(*sys.version_info)
    pattern = make_venv(tmp_path_factory.mktemp("pip") / "venv", version, "--clear")

    def copy(at: Path) -> Venv:
        venv = make_venv(at, version)
        shutil.copytree(pattern.site, venv.site, dirs_exist_ok=True)
        shutil.copytree(shimmed(version).site, venv.site, dirs_exist_ok=True)
        return venv

    return copy


@pytest.fixture
def broken(with_pip: Callable[[Path], Venv], tmp_path: Path) -> Venv:
    """A venv with pip and the shim, to be broken."""
    write(tmp_path, FAKE_VERL)
    return with_pip(tmp_path / "venv")


def survives(venv: Venv, *words: str, **env: str) -> None:
    """Assert that Python starts without a word, pip works, and ``import verl`` goes on after one line with `words`."""
    assert venv.run("print('alive')", **env).err == ""
    assert venv("-m", "pip", "--version", env=env).out.startswith("pip ")
    done = venv.run("import m, verl, verl", cwd=venv.root.parent, **env)
    assert done.out == "verl is there\n"
    done.one_line(*words)


def test_package_gone_and_pth_left(broken: Venv) -> None:
    shutil.rmtree(broken.site / "xpu_sitecustomize")
    shutil.rmtree(broken.site / "verl_xpu_shim")
    survives(broken, "nothing is patched", "xpu_sitecustomize")


@pytest.mark.parametrize("name", ["__init__.py", "finder.py", "watchlist.py"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_half_written(broken: Venv, name: str, share: float) -> None:
    path = broken.site / "xpu_sitecustomize" / name
    text = path.read_text()
    path.write_text(text[: int(len(text) * share)] + "\n    (")
    survives(broken, "Error(", name)


@pytest.mark.parametrize("share", [0, 0.3, 0.6, 0.9])
def test_start_up_file_half_written(broken: Venv, share: float) -> None:
    """Here it is site that reports, in its own words; Python and pip work, and nothing is patched."""
    path = broken.site / "_xpu_sitecustomize.py"
    text = path.read_text()
    path.write_text(text[: int(len(text) * share)])
    assert broken("-m", "pip", "--version").out.startswith("pip ")
    done = broken.run("import verl", cwd=broken.root.parent)
    assert done.out == "verl is there\n"
    assert "xpu_sitecustomize.pth" in done.err


@pytest.mark.parametrize("error", ["SystemExit(3)", "KeyboardInterrupt", "MemoryError", "RuntimeError('two\\nlines')"])
def test_raised_at_the_start(broken: Venv, error: str) -> None:
    (broken.site / "verl_xpu_shim/trace.py").write_text(f"raise {error}")
    done = broken.run("print('alive')", VERL_XPU_SHIM_TRACE="1")
    assert done.out == "alive\n"
    done.one_line(error[:10])
    assert broken("-m", "pip", "--version", env={"VERL_XPU_SHIM_TRACE": "1"}).out.startswith("pip ")


@pytest.mark.parametrize("error", ["SystemExit(3)", "MemoryError", "RuntimeError('two\\nlines')"])
def test_raised_when_it_is_needed(broken: Venv, error: str) -> None:
    (broken.site / "xpu_sitecustomize/finder.py").write_text(f"raise {error}")
    survives(broken, error[:10], "nothing is patched")


@pytest.mark.parametrize("place", ["/dev/full", "/nowhere/at/all", "."])
def test_trace_that_cannot_be_written(venv: Venv, place: str) -> None:
    done = venv.run("print('alive')", VERL_XPU_SHIM_TRACE=place)
    assert done.out == "alive\n"
    assert len(done.err.splitlines()) == 1, done.err
    assert place in done.err


def test_stderr_closed(venv: Venv, tmp_path: Path) -> None:
    write(tmp_path, FAKE_VERL | {"xpu_sitecustomize/__init__.py": "raise RuntimeError"})
    shell = f"{venv.python} -c 'import verl' 2>&-"
    assert execute("sh", "-c", shell, cwd=tmp_path).out == "verl is there\n"


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can start a set-uid process")
@pytest.mark.parametrize("ids", ["os.setresuid(65534, 0, 0)", "os.setresgid(65534, 0, 0)"])
def test_set_uid(own: Venv, tmp_path: Path, ids: str) -> None:
    """Real and effective ids differ: our variables may come from whom they must not; all but the off switch."""
    trace = tmp_path / "trace"
    start = f"import os, sys; {ids}; os.execv({str(own.python)!r}, [{str(own.python)!r}, '-c', sys.argv[1]])"
    ask = "import xpu_sitecustomize as door; print(door.entered, door.environ('VERL_XPU_SHIM_TRACE'))"
    for shim, answer in ("1", "pth None"), ("0", "None None"), ("off", "None None"):
        env = {"VERL_XPU_SHIM_TRACE": str(trace), "VERL_XPU_SHIM": shim}
        assert execute(sys.executable, "-S", "-c", start, ask, cwd=tmp_path, env=env).out.strip() == answer
    assert not trace.exists()


@pytest.mark.parametrize("flag", ["-E", "-I"])
def test_flags_that_distrust_the_environment(venv: Venv, tmp_path: Path, flag: str) -> None:
    trace = tmp_path / "trace"
    assert finders(venv, flag, VERL_XPU_SHIM_TRACE=str(trace)) == ON
    assert not trace.exists()
    assert finders(venv, VERL_XPU_SHIM_TRACE=str(trace)) == ON
    assert stat.S_IMODE(trace.stat().st_mode) == 0o600


def test_nothing_runs_from_the_working_directory(venv: Venv, tmp_path: Path) -> None:
    names = ("_xpu_sitecustomize", "xpu_sitecustomize", "verl_xpu_shim", "sitecustomize")
    write(tmp_path, {f"{name}.py": "raise SystemExit('hijacked')" for name in names})
    done = venv("-c", "print('alive')", cwd=tmp_path, env={"VERL_XPU_SHIM_TRACE": os.devnull})
    assert (done.out, done.err) == ("alive\n", "")
