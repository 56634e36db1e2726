"""The trace log: one JSON object a line, safe for many processes that append to one file."""

from __future__ import annotations

import atexit
import collections
import contextlib
import fcntl
import functools
import json
import os
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any
from typing import Final

_counts: Final[collections.Counter[str]] = collections.Counter()


def start(how: str) -> None:
    """Record that the shim is in this process; ``how`` it got in: ``pth``, ``sitecustomize`` or ``import``."""
    emit("start", detail={"argv": sys.orig_argv, "python": sys.version.split()[0], "how": how, "ppid": os.getppid()})


def emit(event: str, **fields: Any) -> None:
    """Append one line, whole or not at all. Does nothing unless ``VERL_XPU_SHIM_TRACE`` is set."""
    target = destination()
    if target is None:
        return
    if not _counts:
        atexit.register(_exit)
    _counts[event] += 1
    line = {"t": round(time.time(), 6), "pid": os.getpid(), "event": event}
    if rank := os.environ.get("RANK"):
        line["rank"] = int(rank) if rank.isdecimal() else rank
    line.update((name, value) for name, value in fields.items() if value is not None)
    _write(target, json.dumps(line, default=repr, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")


def destination() -> str | None:
    """The path lines go to, ``-`` for stderr, None where there is no trace."""
    value = os.environ.get("VERL_XPU_SHIM_TRACE", "")
    if value in ("", "0") or sys.flags.ignore_environment or _is_set_uid():
        return None
    if value == "1":
        return "-"
    # Filled in by hand: str.format would choke on any other brace of a path.
    names = {"{pid}": str(os.getpid()), "{host}": socket.gethostname(), "{rank}": os.environ.get("RANK", "-")}
    for name, text in names.items():
        value = value.replace(name, text)
    return value


def _is_set_uid() -> bool:
    return os.getuid() != os.geteuid() or os.getgid() != os.getegid()


def _exit() -> None:
    emit("exit", detail=dict(_counts))


def _write(target: str, line: bytes) -> None:
    if target == "-":
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed; there's nobody left to tell
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
        return
    try:
        descriptor = _open(target)
    except OSError as error:
        _complain(target, str(error))
        return
    try:
        # The lock makes the roll-back below safe; O_APPEND alone would do for lines that fit.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if (written := os.write(descriptor, line)) < len(line):
            os.ftruncate(descriptor, size)
            raise OSError(f"wrote {written} of {len(line)} bytes")
    except OSError as error:
        _complain(target, str(error))
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    """Open ``path`` for appending, created 0600, never through a link that somebody else could have planted.

    Raises:
        OSError: it can't be opened, or a link in a world-writable folder is on the way.
    """
    absolute = Path(os.path.abspath(path))
    for part in (absolute, *absolute.parents):
        if part.is_symlink() and part.parent.stat().st_mode & stat.S_IWOTH:
            raise OSError(f"{part} is a symbolic link in a world-writable folder")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    if absolute.parent.stat().st_mode & stat.S_IWOTH:
        flags |= os.O_NOFOLLOW
    return os.open(absolute, flags, 0o600)


@functools.cache
def _complain(target: str, reason: str) -> None:
    """Say once a process and reason what is wrong; a trace that can't be written stops nobody."""
    if sys.stderr is not None:
        print(f"verl-xpu-shim: can't write the trace log {target} (VERL_XPU_SHIM_TRACE): {reason}", file=sys.stderr)
