#!/usr/bin/env python3
"""Builds the emulated `xpu` device for one environment and prints the path of the library.

    python build.py                 for the environment that runs this script
    python build.py --into VENV     for VENV, and put the .pth in it that `XPU_EMU=1` needs

Needs a C++20 compiler (`CXX`, else `c++`) and an installed CPU build of torch. It imports neither torch nor anything
else outside the standard library: a second run, which finds the library, costs a fraction of a second.

XPU_EMU_CACHE   where libraries are kept (default: `.cache/emulated_xpu` of this checkout)
MAX_JOBS        how many compilers run at the same time (default: one a CPU; each takes up to 1 GiB)
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE / "csrc"
# One translation unit each: torch's headers cost many times what our own code does.
UNITS = {
    "device": sorted(CSRC.glob("device/*.cpp")),
    "distributed": sorted(CSRC.glob("distributed/*.cpp")),
    "module": [CSRC / "module.cpp"],
}
CXX = os.environ.get("CXX", "c++")
# -O1 takes half the time of -O2 to build, and what costs time when it runs is torch's own.
CXXFLAGS = ("-std=c++20", "-O1", "-g0", "-fPIC", "-Wall", "-Wextra")
LIBS = ("-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python")

sys.path.insert(0, str(HERE / "python"))
import xpu_emu  # noqa: E402


class BuildError(RuntimeError):
    """The library can't be built here; the message says what is missing."""


def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError(f"torch isn't installed for {sys.executable}")
    return Path(spec.origin).parent


def key() -> str:
    """What the library depends on, hashed: sources, flags, compiler, torch, Python."""
    try:
        compiler = subprocess.run([CXX, "--version"], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"no C++ compiler: `{CXX} --version` failed ({error}); install g++ or set CXX") from error
    digest = hashlib.sha256(compiler)
    for part in (*CXXFLAGS, *LIBS, importlib.metadata.version("torch"), sysconfig.get_config_var("EXT_SUFFIX")):
        digest.update(part.encode() + b"\0")
    for source in sorted(CSRC.rglob("*.*")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def compile_into(target: Path) -> None:
    torch = torch_folder()
    include = (torch / "include", torch / "include/torch/csrc/api/include", Path(sysconfig.get_path("include")))
    flags = (*CXXFLAGS, f"-I{CSRC}", *(f"-isystem{folder}" for folder in include))
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        objects, commands = [], []
        for name, sources in UNITS.items():
            unit = Path(scratch) / f"{name}.cpp"
            unit.write_text("".join(f'#include "{source}"\n' for source in sources))
            objects.append(str(unit.with_suffix(".o")))
            commands.append((CXX, *flags, "-c", str(unit), "-o", objects[-1]))
        with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))) as pool:
            list(pool.map(_run, commands))
        library = Path(scratch) / target.name
        _run((CXX, "-shared", *objects, f"-L{torch / 'lib'}", *LIBS, "-o", str(library)))
        os.replace(library, target)  # whoever has the old one open keeps it


def _run(command: tuple[str, ...]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")


def build() -> Path:
    """The library for this environment, built if it isn't there or is out of date. Safe to call at the same time."""
    if xpu_emu.HERE.parents[1] != HERE:
        raise BuildError(f"XPU_EMU=1 has loaded the emulator of {xpu_emu.HERE.parents[1]}: unset it")
    target = xpu_emu.library(importlib.metadata.version("torch"))
    target.parent.mkdir(parents=True, exist_ok=True)
    stamp = target.with_suffix(".key")
    wanted = key()
    with open(target.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target.exists() and stamp.exists() and stamp.read_text() == wanted):
            start = time.monotonic()
            print(f"building the emulated xpu for torch {importlib.metadata.version('torch')} …", file=sys.stderr)
            stamp.unlink(missing_ok=True)
            compile_into(target)
            stamp.write_text(wanted)
            print(f"built in {time.monotonic() - start:.0f} s", file=sys.stderr)
    return target


def install_pth() -> Path:
    """Makes `XPU_EMU=1` work in this environment: one line in site-packages, which does nothing without it."""
    arm = f"import sys; sys.path.append({str(HERE / 'python')!r}); import xpu_emu; xpu_emu.arm()"
    line = f'import os; os.environ.get("XPU_EMU") == "1" and exec({arm!r})\n'
    pth = Path(sysconfig.get_path("purelib")) / "xpu_emu.pth"
    if not pth.exists() or pth.read_text() != line:
        scratch = pth.with_suffix(f".{os.getpid()}")
        scratch.write_text(line)
        os.replace(scratch, pth)
    return pth


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", metavar="VENV", type=Path, help="build for this environment, and put the .pth in it")
    parser.add_argument("--here", action="store_true", help="as --into, for the environment that runs this script")
    options = parser.parse_args()
    if options.into is not None:
        python = options.into / "bin" / "python"
        environment = {name: value for name, value in os.environ.items() if name != "XPU_EMU"}
        return subprocess.run([str(python), __file__, "--here"], env=environment).returncode
    try:
        print(build())
    except BuildError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    if options.here:
        install_pth()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
