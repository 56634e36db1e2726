"""Where the shim is active and where not: the table in docs/ways-in.md, row by row."""

from __future__ import annotations

import os
import shutil
import sys
import zipapp
from pathlib import Path

import pytest

from venvs import ROOT
from venvs import Venv
from venvs import execute
from venvs import make_venv

from .test_hook import write

HERE = "{}.{}".format(*sys.version_info)
FOLDER = ROOT / "xpu_sitecustomize" / "sitecustomize"
#: Prints how the shim came in, or None.
ASK = "import sys; print(getattr(sys.modules.get('_xpu_sitecustomize'), 'entered', None))"
#: And whether the packages behind the door can be reached.
ASK_ALL = ASK + "; import xpu_sitecustomize.finder, verl_xpu_shim"

IN_A_PROCESS = """
import multiprocessing, sys
def ask(queue): queue.put(sys.modules['_xpu_sitecustomize'].entered)
if __name__ == '__main__':
    context = multiprocessing.get_context({!r})
    queue = context.Queue()
    process = context.Process(target=ask, args=(queue,)); process.start(); print(queue.get(timeout=60)); process.join()
"""
IN_A_SUBINTERPRETER = f"""
import sys
try: import _interpreters as interpreters
except ImportError: import _xxsubinterpreters as interpreters
interpreters.run_string(interpreters.create(), {ASK!r} + '; sys.stdout.flush()')
"""


@pytest.fixture
def bare(tmp_path: Path) -> Venv:
    """A virtual environment without the shim."""
    return make_venv(tmp_path / "bare", HERE)


# --- the .pth ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["-I", "-E", "-s", "-P", "-O", "-OO", "-B", "-u", "-X utf8", "-W error"])
def test_flags(venv: Venv, flag: str) -> None:
    if flag == "-P" and "python3.10" in str(venv.site):
        pytest.skip("Python 3.10 has no -P")
    done = venv.run(ASK_ALL, *flag.split())
    assert (done.out, done.err) == ("pth\n", "")


def test_not_without_site(venv: Venv) -> None:
    assert venv.run(ASK, "-S").out == "None\n"


@pytest.mark.parametrize("way", [("ask.py",), ("-m", "ask"), ("-m", "pack"), ("app.pyz",), ("pack",)], ids=" ".join)
def test_ways_to_run_code(venv: Venv, tmp_path: Path, way: tuple[str, ...]) -> None:
    write(tmp_path, {"ask.py": ASK, "pack/__main__.py": ASK, "pack/__init__.py": ""})
    zipapp.create_archive(tmp_path / "pack", tmp_path / "app.pyz")
    assert venv(*way, cwd=tmp_path).out == "pth\n"


def test_standard_input(venv: Venv) -> None:
    assert execute("sh", "-c", f'echo "{ASK}" | {venv.python} -', cwd=venv.root).out == "pth\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(venv: Venv, tmp_path: Path, method: str) -> None:
    write(tmp_path, {"main.py": IN_A_PROCESS.format(method)})
    assert venv("main.py", cwd=tmp_path).out == "pth\n"


def test_subprocess_with_an_empty_environment(venv: Venv) -> None:
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ASK!r}], env={{}}, check=True)"
    assert venv.run(code).out == "pth\n"


def test_subinterpreter(venv: Venv) -> None:
    assert venv.run(IN_A_SUBINTERPRETER).out == "pth\n"


def test_read_only_site_packages(own: Venv) -> None:
    """As in an image: nothing may be written where the shim lies, not even by root (so that gives up the right to)."""
    shutil.rmtree(own.site / "__pycache__")
    execute("chmod", "-R", "a-w", own.site, cwd=own.root)
    give_up = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
    code = ASK_ALL + f"; open({str(own.site / 'file')!r}, 'w')"
    done = execute(sys.executable, "-S", "-c", give_up, own.python, "-c", code, cwd=Path("/"), code=1)
    assert (done.out, done.err.splitlines()[-1][:15]) == ("pth\n", "PermissionError")
    assert not (own.site / "__pycache__").exists()


def test_system_site_packages(own: Venv, tmp_path: Path) -> None:
    """The base of a venv is the real interpreter, so a venv made from a venv doesn't see the first one's packages."""
    for options in ([], ["--system-site-packages"]):
        inner = tmp_path / f"inner{len(options)}"
        own("-m", "venv", "--without-pip", *options, inner)
        assert Venv(inner).run(ASK).out == "None\n"
    both = Venv(tmp_path / "inner1")
    shutil.copytree(own.site, both.site, dirs_exist_ok=True)
    assert both.run(ASK_ALL).out == "pth\n"


def test_target_folder(own: Venv, bare: Venv, tmp_path: Path) -> None:
    """``pip install --target``: a .pth isn't read from PYTHONPATH, so the folder in it is the way in."""
    target = tmp_path / "target"
    shutil.copytree(own.site, target)
    assert bare.run(ASK, PYTHONPATH=str(target)).out == "None\n"
    folder = bare.run(
        "from verl_xpu_shim import cli; cli.main(['path'])", PYTHONPATH=str(target), code=None
    ).out.strip()
    assert folder == str(target / "xpu_sitecustomize" / "sitecustomize")
    assert bare.run(ASK_ALL, PYTHONPATH=folder).out == "sitecustomize\n"


# --- the folder for PYTHONPATH ----------------------------------------------------------------------------------------


def test_folder_of_a_checkout(bare: Venv) -> None:
    body = f"{ASK_ALL}; import xpu_sitecustomize; print(xpu_sitecustomize.entered); import no_such_module"
    done = bare.run(body, PYTHONPATH=str(FOLDER), code=1)
    assert done.lines() == ["sitecustomize", "sitecustomize"]
    assert "No module named 'no_such_module'" in done.err


def test_folder_opens_nothing_else(bare: Venv) -> None:
    """Only our packages are found beside it, not what else lies there, perhaps for another Python."""
    assert bare.run("import _startup_files", PYTHONPATH=str(FOLDER), code=1).err.count("ModuleNotFoundError") == 1


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_folder_not_where_it_is_ignored(bare: Venv, flag: str) -> None:
    assert bare.run(ASK, flag, PYTHONPATH=str(FOLDER)).out == "None\n"


def test_folder_switched_off(bare: Venv) -> None:
    done = bare.run(
        "import sys; print([each.__name__ for each in sys.meta_path])", PYTHONPATH=str(FOLDER), VERL_XPU_SHIM="0"
    )
    assert done.out == "['BuiltinImporter', 'FrozenImporter', 'PathFinder']\n"


def test_folder_in_an_environment_that_has_the_shim(own: Venv) -> None:
    """The .pth comes first; one finder all the same."""
    code = ASK + "; print(sum('xpu' in repr(each) for each in sys.meta_path))"
    assert own.run(code, PYTHONPATH=str(FOLDER)).lines() == ["pth", "1"]


USER = "import sys; sys.user = getattr(sys, 'user', []) + [{!r}]; from sitecustomize import __file__ as where"


@pytest.mark.parametrize(
    ("path", "user"),
    [
        ("ours a b", ["a"]),
        ("a ours b", ["a"]),
        ("empty ours empty a", ["a"]),
        ("ours ours a", ["a"]),
        ("ours other a", ["a"]),
        ("other ours", []),
        ("ours", []),
        ("ours link a", ["a"]),
    ],
)
def test_other_sitecustomize(bare: Venv, tmp_path: Path, path: str, user: list[str]) -> None:
    """Of the user's own ``sitecustomize`` modules the first runs, as without us, once, under its own name."""
    write(tmp_path, {f"{name}/sitecustomize.py": USER.format(name) for name in "ab"} | {"empty/x.txt": ""})
    shutil.copytree(ROOT / "xpu_sitecustomize", tmp_path / "copy/xpu_sitecustomize")
    (tmp_path / "link").symlink_to(FOLDER)
    folders = {"ours": FOLDER, "other": tmp_path / "copy/xpu_sitecustomize/sitecustomize"}
    python_path = os.pathsep.join(str(folders.get(name, tmp_path / name)) for name in path.split())
    body = f"{ASK}; print(getattr(sys, 'user', [])); print(sys.modules['sitecustomize'].__file__)"
    active, ran, module = bare.run(body, PYTHONPATH=python_path).lines()
    assert active == ("None" if path.startswith("a ") else "sitecustomize")
    assert ran == repr(user)
    if user:
        assert module == str(tmp_path / user[0] / "sitecustomize.py")


def test_failing_sitecustomize_of_the_user(bare: Venv, tmp_path: Path) -> None:
    """Fails in the same words with us and without."""
    write(tmp_path, {"a/sitecustomize.py": "1 / 0"})
    alone = bare.run("pass", PYTHONPATH=str(tmp_path / "a"))
    behind = bare.run("pass", PYTHONPATH=f"{FOLDER}{os.pathsep}{tmp_path / 'a'}")
    assert "ZeroDivisionError" in alone.err
    assert behind.err == alone.err


@pytest.mark.parametrize("flag", ["-s", "-P", "-O", "-B"])
def test_folder_with_flags(bare: Venv, flag: str) -> None:
    assert bare.run(ASK_ALL, flag, PYTHONPATH=str(FOLDER)).out == "sitecustomize\n"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_folder_and_multiprocessing(bare: Venv, tmp_path: Path, method: str) -> None:
    write(tmp_path, {"main.py": IN_A_PROCESS.format(method)})
    assert bare("main.py", cwd=tmp_path, env={"PYTHONPATH": str(FOLDER)}).out == "sitecustomize\n"


def test_folder_and_other_processes(bare: Venv, tmp_path: Path) -> None:
    write(tmp_path, {"ask.py": ASK})
    env = {"PYTHONPATH": str(FOLDER)}
    assert bare("-m", "ask", cwd=tmp_path, env=env).out == "sitecustomize\n"
    assert bare.run(IN_A_SUBINTERPRETER, **env).out == "sitecustomize\n"
    bare("-m", "venv", "--without-pip", tmp_path / "inner")
    assert Venv(tmp_path / "inner").run(ASK, **env).out == "sitecustomize\n"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ASK!r}], env={{}}, check=True)"
    assert bare.run(code, **env).out == "None\n"


# --- in code ----------------------------------------------------------------------------------------------------------


def test_import(own: Venv, bare: Venv) -> None:
    body = "import xpu_sitecustomize as door; assert door.install(); print(door.entered)"
    assert bare.run(body, PYTHONPATH=str(own.site)).out == "import\n"
