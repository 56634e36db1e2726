"""The stub Level Zero driver: built once, then put before real pyzes in a child interpreter.

It stands where hardware is missing and nowhere else: pyzes, torch's own enumeration and the code
under test are the real ones.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import Final

HERE: Final = Path(__file__).parent
SOURCE: Final = HERE / "stub_driver.c"

LOADER: Final = "/usr/lib/x86_64-linux-gnu/libze_loader.so.1"
"""The one path from which pyzes loads Level Zero on Linux."""

PRELOAD: Final = "import ctypes, os; ctypes.CDLL(os.environ['STUB_ZE_LIBRARY'])\n"


def build(folder: Path) -> None:
    """Compiles both forms of the stub into `folder`: `libstub_ze.so` and `libze_direct.so`."""
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    # The dynamic linker takes a library that is in the process already for a path equal to its
    # SONAME, so nothing under /usr is replaced or even needed.
    stand_in = ["-DDIRECT", f"-Wl,-soname,{LOADER}"]
    for name, extra in (("libstub_ze.so", []), ("libze_direct.so", stand_in)):
        subprocess.run(["cc", *flags, *extra, "-o", folder / name, SOURCE], check=True)


def loader_is_new_enough() -> bool:
    """Whether the loader installed here has `zesInit`, which pyzes needs (Debian 12's 1.8.12 lacks it)."""
    try:
        return hasattr(ctypes.CDLL(LOADER), "zesInit")
    except OSError:
        return False


def ways() -> Iterator[str]:
    """How real pyzes can reach the stub on this machine."""
    yield "direct"
    if loader_is_new_enough():
        yield "loader"


def environment(folder: Path, way: str, devices: str, **more: str) -> dict[str, str]:
    """The environment of a child in which pyzes finds `devices` (the syntax is in `stub_driver.c`)."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ZE_", "ZES_", "ZEL_", "STUB_ZE_"))}
    stub = {"STUB_ZE_DEVICES": devices, "STUB_ZE_LIBRARY": str(folder / "libze_direct.so")}
    if way == "loader":
        # A tracing layer of another version on the system would make zesInit fail.
        stub |= {
            "STUB_ZE_LIBRARY": LOADER,
            "ZE_ENABLE_ALT_DRIVERS": str(folder / "libstub_ze.so"),
            "ZEL_LIBRARY_PATH": "/nonexistent",
        }
    return clean | stub | more


def run(code: str, env: dict[str, str], *argv: str) -> Any:
    """What `code` prints as JSON on its last line, run in a child with the stub loaded first."""
    child = subprocess.run(
        [sys.executable, "-c", PRELOAD + code, *argv],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])
