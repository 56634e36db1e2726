"""Ranges as Chrome trace events, for https://ui.perfetto.dev: one file a process, whole after a crash.

A file is a JSON array that is never closed (which the format allows), one event a line, each line one ``write`` to a
file opened for appending. Timestamps are the monotonic clock's, which all processes of a host share; the first line
anchors it to the wall clock, so that :mod:`verl_xpu_shim.profiling.merge` can put many hosts on one.

Format: "Trace Event Format" (Google), asynchronous nestable events; ``ts`` in microseconds.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any
from typing import Final

from verl_xpu_shim.profiling import DOMAIN

SUFFIX: Final = ".ranges.json"

_log: Final = logging.getLogger("verl_xpu_shim.profiling")


class ChromeSink:
    """Writes the ranges of this process to a file of its own in ``directory``."""

    def __init__(self, directory: str) -> None:
        self._directory: Final = Path(directory)
        self._pid: Final = os.getpid()
        self._lock: Final = threading.Lock()
        self._threads: Final = threading.local()
        self._ids: Final = itertools.count(1)
        self._file: int | None = None
        self._broken = False
        self._role: str | None = None
        self._rank: int | None = None

    def begin(
        self, name: str, color: str | None, domain: str | None, category: str | None, detail: str | None
    ) -> tuple[int, str]:
        number, head = next(self._ids), _head(name, domain or DOMAIN)
        facts = {"category": category, "color": color, "detail": detail}
        args = json.dumps({key: value for key, value in facts.items() if value is not None})
        self._write(f'{{"ph":"b",{head},"id":{number},{self._here()},"args":{args}}}')
        return number, head

    def end(self, opened: tuple[int, str]) -> None:
        number, head = opened
        self._write(f'{{"ph":"e",{head},"id":{number},{self._here()}}}')

    def mark(self, name: str, facts: dict[str, Any], domain: str = DOMAIN) -> None:
        self._write(f'{{"ph":"i","s":"p",{_head(name, domain)},{self._here()},"args":{json.dumps(facts)}}}')

    def resume(self) -> None:
        self.mark("resume", {}, "collector")

    def pause(self) -> None:
        self.mark("pause", {}, "collector")

    def describe(self, role: str | None, rank: int | None) -> None:
        known = self._role, self._rank
        # The first description stays: colocated roles are described from the outside in.
        self._role, self._rank = self._role or role, rank if self._rank is None else self._rank
        if (self._role, self._rank) != known and self._file is not None:
            self._write(self._process())

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file, self._broken = None, True

    def _here(self) -> str:
        """Process, thread and time of an event."""
        tid = getattr(self._threads, "tid", None)
        if tid is None:
            tid = self._threads.tid = threading.get_native_id()
            self._write(self._metadata("thread_name", tid, name=threading.current_thread().name))
        return f'"pid":{self._pid},"tid":{tid},"ts":{time.monotonic_ns() / 1e3:.3f}'

    def _write(self, event: str) -> None:
        try:
            if self._file is None and not self._broken:
                self._open()
            if self._file is not None:
                os.write(self._file, f"{event},\n".encode())
        except OSError as error:
            self._broken, self._file = True, None
            _log.warning(
                "Ranges of process %d can't be written to %s: %s. The run goes on.", self._pid, self._directory, error
            )

    def _open(self) -> None:
        with self._lock:
            if self._file is not None:
                return
            self._directory.mkdir(parents=True, exist_ok=True)
            host = socket.gethostname()
            path = self._directory / f"{host}-{self._pid}-{time.time_ns():x}{SUFFIX}"
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            clock = self._metadata(
                "clock", 0, host=host, boot=_boot(), wall_minus_monotonic_ns=time.time_ns() - time.monotonic_ns()
            )
            os.write(file, f"[\n{clock},\n{self._process()},\n".encode())
            self._file = file

    def _process(self) -> str:
        rank = self._rank
        if rank is None and (variable := os.environ.get("RANK", "")).isdecimal():
            rank = int(variable)
        name = f"{self._role or _program()}{'' if rank is None else f' rank {rank}'} (pid {self._pid})"
        return self._metadata("process_name", 0, name=name, rank=rank)

    def _metadata(self, name: str, tid: int, /, **args: Any) -> str:
        return json.dumps({"ph": "M", "name": name, "pid": self._pid, "tid": tid, "args": args}, separators=(",", ":"))


def _head(name: str, domain: str) -> str:
    return f'"cat":{json.dumps(domain)},"name":{json.dumps(str(name))}'


def _boot() -> str:
    """What tells hosts apart: processes with the same answer share a monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _program() -> str:
    """What this process runs: a Ray actor's or task's name, else the module ``python -m`` ran, else the script."""
    ray = sys.modules.get("ray")
    with contextlib.suppress(Exception):  # a name is no reason to stop: Ray has changed this before
        # Asked for its context before it is initialised, Ray would start a cluster.
        if ray is not None and ray.is_initialized():
            context = ray.get_runtime_context()
            if context.worker.mode == ray.WORKER_MODE:
                return str(context.get_actor_name() or context.get_task_name().partition(".")[0])
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name.rpartition(".")[2] if spec is not None else Path(sys.argv[0] or "python").name
