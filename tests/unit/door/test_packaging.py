"""Wheel, editable, uv and sdist: what is installed, where, and that uninstalling leaves nothing."""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from venvs import Venv
from venvs import execute
from venvs import make_venv

from .test_ways_in import ASK_ALL
from .test_ways_in import HERE

#: An installer: its words, and those to take out again.
Installer = Callable[[Venv], tuple[list[str], list[str]]]


def pip(venv: Venv) -> tuple[list[str], list[str]]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", str(venv.python)]
    return [*command, "install", "--no-deps"], [*command, "uninstall", "-y"]


def uv(venv: Venv) -> tuple[list[str], list[str]]:
    uv = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
    if uv is None:
        pytest.skip("no uv on this machine")
    command = [uv, "pip"]
    where = ["--quiet", "--python", str(venv.python)]
    return [*command, "install", "--no-deps", *where], [*command, "uninstall", *where]


def everything(venv: Venv) -> set[str]:
    """Name every file, but for uv's own lock and what Python compiles for setuptools' editable finder."""
    names = {str(path.relative_to(venv.root)) for path in venv.root.rglob("*") if not path.is_dir()}
    return {name for name in names if name != ".lock" and "__pycache__/__editable__" not in name}


def test_wheel_holds_every_file(source: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith(".pyc")}
    here = {f"xpu_sitecustomize/{name}" for name in files(source / "xpu_sitecustomize")}
    here |= {f"verl_xpu_shim/{name}" for name in files(source / "src/verl_xpu_shim")}
    assert there == here | {"xpu_sitecustomize.pth", "_xpu_sitecustomize.py"}


def files(folder: Path) -> set[str]:
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if "__pycache__" not in name}


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = next(name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = archive.read(info).decode()
        points = archive.read(info.replace("METADATA", "entry_points.txt")).decode()
    required = [line.partition(": ")[2] for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert [each for each in required if "extra ==" not in each] == ["importlib-metadata"]
    assert not [each for each in required if each.startswith(("torch", "verl", "vllm", "ray"))]
    assert "verl-xpu-shim = verl_xpu_shim.cli:main" in points


def test_bytecode_of_the_start_up_file_comes_along(wheel: Path, tmp_path: Path) -> None:
    """uv compiles nothing, many images write nothing, and compiling costs a start ten times all else of ours."""
    venv = make_venv(tmp_path / "venv", HERE)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(venv.site)
    code = "import _xpu_sitecustomize as door; print(door.__cached__)"
    done = venv.run(code, "-v", PYTHONDONTWRITEBYTECODE="1")
    assert f"code object from '{done.out.strip()}'" in done.err
    assert "/site-packages/_xpu_sitecustomize.py" not in Path(done.out.strip()).read_bytes().decode("latin1")
    file = venv.site / "_xpu_sitecustomize.py"
    file.write_text(file.read_text() + "entered = 'edited'\n")
    assert venv.run(ASK_ALL, PYTHONDONTWRITEBYTECODE="1").out == "edited\n"


@pytest.mark.parametrize("installer", [pip, uv])
@pytest.mark.parametrize("way", ["wheel", "folder", "editable"])
def test_install_and_uninstall(source: Path, wheel: Path, tmp_path: Path, installer: Installer, way: str) -> None:
    venv = make_venv(tmp_path / "venv", HERE)
    before = everything(venv)
    install, uninstall = installer(venv)
    copy = tmp_path / "source"
    shutil.copytree(source, copy)
    what = {"wheel": [wheel], "folder": [copy], "editable": ["-e", copy]}[way]
    execute(*install, *what, cwd=tmp_path)
    assert (venv.site / "xpu_sitecustomize.pth").is_file()
    done = venv.run(ASK_ALL + "; print(verl_xpu_shim.__file__)")
    assert done.lines()[0] == "pth"
    assert done.lines()[1].startswith(str(copy if way == "editable" else venv.site))
    assert (venv.root / "bin" / "verl-xpu-shim").is_file()
    if way == "editable":
        # a checkout that is gone must not take Python along
        copy.rename(tmp_path / "moved")
        done = venv.run("import sys; print('alive')\ntry: import vllm\nexcept ImportError as error: print(error)")
        assert done.lines() == ["alive", "No module named 'vllm'"]
        done.one_line("nothing is patched")
        (tmp_path / "moved").rename(copy)
    execute(*uninstall, "verl-xpu-shim", cwd=tmp_path)
    assert everything(venv) == before


def test_oldest_setuptools(source: Path, wheel: Path, tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv", HERE)
    install, _ = pip(venv)
    execute(*install, "pip", "wheel==0.42.0", "setuptools==64.0.3", cwd=tmp_path)
    shutil.copytree(source, tmp_path / "source")
    build = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, tmp_path / "source")
    venv(*build)
    assert content(next(tmp_path.glob("*.whl"))) == content(wheel)
    venv("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-e", tmp_path / "source")
    assert venv.run(ASK_ALL).out == "pth\n"


def test_sdist(source: Path, wheel: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    execute(sys.executable, "-c", code, cwd=tmp_path / "source")
    build = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path)
    execute(*build, next(tmp_path.glob("*.tar.gz")), cwd=tmp_path)
    assert content(next(tmp_path.glob("*.whl"))) == content(wheel)


def content(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info" not in name}
