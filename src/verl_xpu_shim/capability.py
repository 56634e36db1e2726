"""What a capability is, and the transaction in which it changes a module."""

from __future__ import annotations

import functools
import importlib
import inspect
import threading
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.contract import Contract
from verl_xpu_shim.contract import replace_constant

#: Every wrapper carries this attribute: the name of the capability that made it.
MARK: Final = "__verl_xpu_shim__"

#: The stable names, in the order of the documentation.
NAMES: Final = (
    "platform",
    "fsdp_engine",
    "attention_utils",
    "attention_default",
    "reduce_avg",
    "fsdp2_reduce_avg",
    "ray_devices",
    "host_copy",
    "weight_sync",
    "dist_profiler",
    "profiler_markers",
    "rollout_profiler",
    "numa_affinity",
    "host_embedding",
)

#: Those that serve every accelerator; the others are for hosts with an XPU build, where alone their files are read.
EVERYWHERE: Final = frozenset({"host_embedding"})


@dataclass(frozen=True)
class Target:
    """A module that a capability patches once its body has run.

    ``patch`` makes its changes through the :class:`Edit` it is given; what ``contract`` asks for holds by then.
    ``may_be_absent``: some supported versions have no such module. ``left_out``: what tells a user who has left the
    capability out, and asks for what it does; in its place.
    """

    module: str
    patch: Callable[[ModuleType, Edit], None]
    contract: Contract = ()
    may_be_absent: bool = False
    left_out: Callable[[ModuleType, Edit], None] | None = None


@dataclass(frozen=True)
class Capability:
    """One thing the shim does, as data.

    ``required``: results would be wrong without it, so a failure to install stops the process.
    """

    name: str
    required: bool
    summary: str
    targets: tuple[Target, ...]

    def target(self, module: str) -> Target:
        return next(target for target in self.targets if target.module == module)


@functools.cache
def load(name: str) -> Capability:
    """Return the capability ``name``; its file is ``patches/NAME.py``."""
    capability: Capability = importlib.import_module(f"verl_xpu_shim.patches.{name}").CAPABILITY
    return capability


@dataclass(frozen=True)
class Change:
    """One attribute that was replaced."""

    owner: Any
    name: str
    old: Any
    new: Any

    @property
    def symbol(self) -> str:
        qualifier = getattr(self.owner, "__qualname__", None)  # modules have none, and the trace names the module
        return f"{qualifier}.{self.name}" if qualifier else self.name


_ABSENT: Final = object()


def _makers(value: Any) -> Iterator[str]:
    """The capabilities that made ``value``, or what it wraps."""
    while value is not None:
        if (maker := getattr(value, MARK, None)) is not None:
            yield maker
        value = getattr(value, "__wrapped__", None)


class Edit:
    """The changes of one capability to one module: all of them, or none.

    A patch that raises is rolled back by its caller through :meth:`undo`.
    """

    def __init__(self, capability: str) -> None:
        self._capability: Final = capability
        self._undo: Final[list[Callable[[], object]]] = []
        self._lock: Final = threading.Lock()
        self.changes: Final[list[Change]] = []
        self.notes: Final[list[str]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace ``owner.name`` by ``make(original)``, which takes over its name, documentation and signature.

        What this capability has wrapped already is left as it is: patches belong to an object, not to a name.
        """
        old = getattr(owner, name)
        if self._capability in _makers(old):
            self.notes.append(f"{name}: already patched")
            return
        new = functools.wraps(old)(make(old))
        setattr(new, MARK, self._capability)
        self.replace(owner, name, new)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Bind ``owner.name`` to ``new``."""
        old = inspect.getattr_static(owner, name, _ABSENT)
        inherited = isinstance(owner, type) and name not in vars(owner)
        setattr(owner, name, new)
        restore = functools.partial(setattr, owner, name, old)
        forget = functools.partial(delattr, owner, name)
        self.changed(
            Change(owner, name, None if old is _ABSENT else old, new),
            forget if inherited or old is _ABSENT else restore,
        )

    def constant(self, function: Any, old: Any, new: Any) -> None:
        """Replace the constant ``old`` in the code of ``function``, which stays the same object for who captured it.

        Raises:
            LookupError: ``old`` isn't exactly once among the constants of ``function``.
        """
        plain = inspect.unwrap(function)
        if not isinstance(plain, FunctionType):
            raise TypeError(f"{function!r} has no code to change")
        if any(type(each) is type(new) and each == new for each in plain.__code__.co_consts) and hasattr(plain, MARK):
            self.notes.append(f"{plain.__qualname__}: already patched by {getattr(plain, MARK)}")
            return
        code = plain.__code__
        plain.__code__ = replace_constant(code, old, new)
        setattr(plain, MARK, self._capability)

        def restore() -> None:
            plain.__code__ = code
            delattr(plain, MARK)

        self.changed(Change(plain, repr(old), old, new), restore)

    def changed(self, change: Change, undo: Callable[[], object]) -> None:
        """Record a change made by other means, with what takes it back."""
        with self._lock:
            self.changes.append(change)
            self._undo.append(undo)

    def undo(self) -> None:
        """Take every change back, the last one first."""
        with self._lock:
            while self._undo:
                self._undo.pop()()
            self.changes.clear()
