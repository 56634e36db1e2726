"""The door: every interpreter start of the environment runs this file, so it is small and needs nothing.

It puts one finder first on ``sys.meta_path`` that knows two names. What happens when one of them is imported is in
`finder`, which no other process ever reads.
"""

# No `from __future__ import annotations` here: it would import `__future__` at every start.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


ROOTS = ("verl", "vllm")

#: module name -> its hooks. The roots are there from the start: the first of them to run arms the rest.
watched: "dict[str, list[Callable[[ModuleType], object]]]" = {name: [] for name in ROOTS}
#: Watched bodies that are running now -> the modules first imported since each of them began.
running: "dict[int, list[str]]" = {}
#: How the finder came in ("pth", "sitecustomize", "import"); None where it is not installed.
entered: "str | None" = None


class Refused(RuntimeError):
    """Raised by a hook to stop the import: going on without it would give wrong results."""


class Finder:
    """First on ``sys.meta_path``; leaves every module but the watched ones to the finders behind it."""

    @staticmethod
    def find_spec(
        name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if running:
            for imported in tuple(running.values()):
                imported.append(name)
        if name not in watched:
            return None
        try:
            find: Callable[..., ModuleSpec | None] = _finder().find
        except Exception as error:
            watched.clear()
            complain(f"cannot load its import hooks, so nothing is patched in this process: {error!r}")
            return None
        return find(name, path, target)


def install(how: str = "import") -> bool:
    """Put the finder on ``sys.meta_path``, unless ``VERL_XPU_SHIM`` is off; False where it is. Idempotent.

    Raises:
        Refused: verl or vLLM is imported already and a capability that correctness needs can't be installed.
    """
    global entered
    if (environ("VERL_XPU_SHIM") or "").strip().lower() in ("0", "off", "false", "no"):
        return False
    if is_installed():
        return True
    sys.meta_path.insert(0, Finder)
    entered = how
    if environ("VERL_XPU_SHIM_TRACE") not in (None, "", "0"):
        try:
            from verl_xpu_shim import trace

            trace.start(how)
        except Exception as error:
            complain(f"no trace: {error!r}")
    if any(root in sys.modules for root in ROOTS):
        _finder().arm()
    return True


def uninstall() -> None:
    """Take the finder out again. What is patched already stays so."""
    global entered
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not Finder]
    entered = None


def is_installed() -> bool:
    """Whether the finder is on ``sys.meta_path``."""
    return any(finder is Finder for finder in sys.meta_path)


def watch(name: str, hook: "Callable[[ModuleType], object]") -> None:
    """Call ``hook(module)`` whenever the body of module `name` has run, before any importer of it goes on.

    At once where it is imported already, at the end of the body where that is running, again after a reload. What the
    hook replaces is replaced, too, in the modules that took the original before. What it raises is reported and breaks
    nobody's import, save `Refused`. Installs the finder; does nothing where ``VERL_XPU_SHIM`` is off.
    """
    if install():
        _finder().watch(name, hook)


def environ(name: str) -> "str | None":
    """An environment variable, or None where the environment isn't to be trusted: -E, -I, a set-uid process."""
    if sys.flags.ignore_environment or (
        os.name == "posix" and (os.getuid() != os.geteuid() or os.getgid() != os.getegid())
    ):
        return None
    return os.environ.get(name)


def complain(text: str) -> None:
    """One line on stderr, where there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"verl-xpu-shim: {' '.join(text.split())}\n")


def _finder() -> "ModuleType":
    # find_spec() runs under importlib's global lock. Whoever else loads `finder` takes that lock first as well, so that
    # no two threads can each hold what the other one waits for.
    import _imp

    _imp.acquire_lock()
    try:
        from xpu_sitecustomize import finder
    finally:
        _imp.release_lock()
    return finder
