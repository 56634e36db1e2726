"""What the finder does for a watched module: see its body begin and end, run the hooks, mend what was captured.

The module's loader stays what it is. importlib sets ``ModuleSpec._initializing`` to True right before a body and to
False right after it, under the module's import lock and with no frame below the body; so for the time of one import the
spec gets a class that notices, and then its own class back. Where that flag plays no part (a reload, a lazy load), or
in an importlib that no longer has it, a stand-in for the loader puts the loader back as its first act.
"""

from __future__ import annotations

import sys
from _frozen_importlib import ModuleSpec
from _thread import get_ident
from types import ModuleType
from typing import TYPE_CHECKING
from typing import Any

import _xpu_sitecustomize
from _xpu_sitecustomize import complain
from _xpu_sitecustomize import watched

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Sequence

    Hook = Callable[[ModuleType], object]

ROOTS = ("verl", "vllm")

#: id() of the spec of each watched body that is running -> the modules looked for since it began.
running: dict[int, list[str]] = {}

_asking: set[tuple[int, str]] = set()
#: Modules whose hooks a stand-in runs, from the list in `watched` itself: what is added to that is called, too.
_at_hooks: list[str] = []


class Refused(RuntimeError):
    """Raised by a hook to stop the import: going on without it would give wrong results."""


def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
    """Return the spec that the finders behind ours have for a watched module, ready to see its body."""
    if running:
        for looked_for in tuple(running.values()):
            looked_for.append(name)
    if name not in watched:
        return None
    asked = get_ident(), name
    if asked in _asking:  # a finder behind ours asks all of sys.meta_path for what it was asked
        return None
    _asking.add(asked)
    try:
        spec = _ask_behind(name, path, target)
    finally:
        _asking.discard(asked)
    if type(spec) is ModuleSpec:
        if target is None and SPECS_TELL:
            spec.__class__ = Spec
        elif hasattr(spec.loader, "exec_module"):
            spec.loader = StandIn(spec, spec.loader, reload=target is not None)  # type: ignore[assignment]
    return spec


def _ask_behind(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    behind = False
    for finder in tuple(sys.meta_path):
        if behind:
            try:
                find = finder.find_spec
            except AttributeError:  # passed over by importlib as well
                continue
            spec = find(name, path, target)
            if spec is not None:
                return spec
        elif finder is _xpu_sitecustomize:
            behind = True
    return None


class Spec(ModuleSpec):
    """A spec for the time of one import."""

    def __setattr__(self, name: str, value: Any) -> None:
        state = self.__dict__
        if name == "_initializing" and value:
            state[name] = value
            begins(self)
        elif name == "_initializing" and state.get(name):
            try:  # the flag stays up meanwhile: other threads wait for the hooks as they do for the body
                ends(self)
            finally:
                object.__setattr__(self, "__class__", ModuleSpec)
                state[name] = value
        elif name == "loader" and getattr(state.get(name), name, None) is value is not None:
            # importlib.util.LazyLoader puts its loader back: the module's first use will call exec_module on that
            state[name] = StandIn(self, value)
            running.pop(id(self), None)  # this body is no more than the wrapping up
        else:
            super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return ModuleSpec.__new__, (ModuleSpec,), self.__dict__  # a copy is a plain spec


Spec.__name__ = Spec.__qualname__ = ModuleSpec.__name__  # what repr() shows


class StandIn:
    """Stands in for the loader of `spec` until the body runs."""

    def __init__(self, spec: ModuleSpec, loader: Any, *, reload: bool = False) -> None:
        self._spec = spec
        self._loader = loader
        self._reload = reload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._loader.__reduce_ex__(protocol)

    def exec_module(self, module: ModuleType) -> None:
        spec, loader = self._spec, self._loader
        spec.__class__ = ModuleSpec
        spec.loader = loader
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = loader
        begins(spec)
        try:
            loader.exec_module(module)
        except BaseException:
            running.pop(id(spec), None)
            raise
        name, there = spec.name, sys.modules.get(spec.name)
        _at_hooks.append(name)
        try:
            ends(spec)
        except Refused:
            if self._reload and there is not None:
                sys.modules[name] = there  # a reload that fails leaves the module, and importlib expects it
            raise
        finally:
            _at_hooks.remove(name)

    # its frame is importlib's business, not the user's: warnings and tracebacks leave it out
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")


def begins(spec: ModuleSpec) -> None:
    """The body of a watched module is about to run."""
    if spec.name in ROOTS:
        arm()
    running[id(spec)] = []


def ends(spec: ModuleSpec) -> None:
    """The body of a watched module has run, or has failed."""
    name = spec.name
    imported = running.pop(id(spec), None)
    module = sys.modules.get(name)
    if imported is None or module is None:  # lazy, or failed
        return
    try:
        run(name, module, watched[name], imported)
    except Refused:
        sys.modules.pop(name, None)
        raise


def run(name: str, module: ModuleType, hooks: list[Hook], holders: Iterable[str]) -> None:
    """Run `hooks` on a module, then give the modules named in `holders` the new where they hold the old."""
    space = module.__dict__ if type(module) is ModuleType else _space(module)
    before = space.copy()
    package = _bind_to_parent(name, module) if "." in name else None
    try:
        for hook in hooks:
            _call(hook, name, module)
    except Refused:
        if package is not None:
            delattr(package, name.rpartition(".")[2])
        raise
    try:
        if before == space:
            return
    except Exception:  # noqa: S110, what can't be compared may have been replaced
        pass
    moved = {id(old): space[key] for key, old in before.items() if space.get(key, old) is not old and callable(old)}
    # who replaces keeps the original: that is not a capture
    own = {"xpu_sitecustomize", "verl_xpu_shim"}
    own |= {str(getattr(hook, "__module__", "")).partition(".")[0] for hook in hooks}
    rebind(moved, (sys.modules.get(each) for each in holders if each != name and each.partition(".")[0] not in own))


def _call(hook: Hook, name: str, module: ModuleType) -> None:
    try:
        hook(module)
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        complain(f"a hook for {name} failed, its import goes on: {type(error).__name__}: {error}")


def rebind(moved: dict[int, Any], modules: Iterable[ModuleType | None]) -> None:
    """In `modules`, replace what ``id()`` finds in `moved`."""
    for space in map(_space, modules):
        for key, value in tuple(space.items()):
            if id(value) in moved:
                space[key] = moved[id(value)]


def _space(module: ModuleType | None) -> dict[str, Any]:
    """Return the module's namespace without waking up a lazy module; anything can lie in sys.modules."""
    try:
        space = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return {}
    return space if type(space) is dict else {}


def _bind_to_parent(name: str, module: ModuleType) -> ModuleType | None:
    """Do early what importlib does after the hooks, so that a hook finds ``package.module``; return such a package."""
    parent, _, child = name.rpartition(".")
    package = sys.modules.get(parent)
    if package is None or child in _space(package):
        return None
    try:
        setattr(package, child, module)
    except AttributeError:  # importlib warns of it
        return None
    return package


def watch(name: str, hook: Hook) -> None:
    """See `xpu_sitecustomize.watch`."""
    watched.setdefault(name, []).append(hook)
    _catch_up(name, [hook])


def _catch_up(name: str, hooks: list[Hook]) -> None:
    """Run hooks that come after the import of their module has begun: now, or when its body is through."""
    module = sys.modules.get(name)
    if module is None or name in _at_hooks:
        return
    spec = _space(module).get("__spec__")
    if type(spec) is ModuleSpec:
        if type(module).__name__ == "_LazyModule" and not spec.loader_state.get("is_loading"):
            if not isinstance(spec.loader, StandIn):
                spec.loader = StandIn(spec, spec.loader)  # type: ignore[assignment]
            return
        if getattr(spec, "_initializing", False):
            running[id(spec)] = list(sys.modules)  # any of them may hold what the body has defined so far
            spec.__class__ = Spec
    if type(spec) is Spec:
        if getattr(spec, "_initializing", False) or isinstance(spec.loader, StandIn):
            return
        spec.__class__ = ModuleSpec  # type: ignore[assignment]  # another thread got to the end of the body in between
        running.pop(id(spec), None)
    run(name, module, hooks, tuple(sys.modules))


_capability_hooks: dict[str, Hook] = {}
_armed = False


def arm() -> None:
    """Watch the modules that capabilities patch. Until a root's body begins, torch belongs to everybody."""
    global _armed
    if _armed:
        return
    _armed = True
    try:
        from xpu_sitecustomize.watchlist import WATCHLIST
    except Exception as error:
        complain(f"cannot load its watchlist, so nothing is patched in this process: {error!r}")
        return
    for name in WATCHLIST.keys() - _capability_hooks.keys():
        _capability_hooks[name] = _apply(WATCHLIST[name])
        watched.setdefault(name, []).append(_capability_hooks[name])
    try:
        for name in WATCHLIST:
            _catch_up(name, [_capability_hooks[name]])
    except Refused:
        _armed = False  # and refused again at the next attempt
        raise


def _apply(capabilities: tuple[str, ...]) -> Hook:
    def hook(module: ModuleType) -> None:
        try:
            from verl_xpu_shim import policy
        except Exception as error:
            _without_capabilities(module, error)
        else:
            for capability in capabilities:
                policy.apply(capability, module)

    return hook


def _without_capabilities(module: ModuleType, error: Exception) -> None:
    global _complained
    text = f"cannot import verl_xpu_shim ({type(error).__name__}: {error}); reinstall it or set VERL_XPU_SHIM=0"
    if getattr(sys.modules.get("torch.version"), "xpu", None):
        raise Refused(f"verl-xpu-shim: {text}. {module.__name__} can't be patched for XPU") from error
    if not _complained:
        _complained = True
        complain(text)


_complained = False


def _specs_tell() -> bool:
    """Whether this importlib sets the flag round a body: tried out on a module of no one's."""
    seen: list[str] = []

    class Body:
        create_module = staticmethod(lambda spec: None)
        exec_module = staticmethod(lambda module: seen.append("body"))

    trial = ModuleSpec("xpu_sitecustomize._trial", Body)  # type: ignore[arg-type]
    trial.__class__ = Spec
    watched[trial.name] = [lambda module: seen.append("hook")]
    try:
        from _frozen_importlib import _load  # type: ignore[attr-defined]

        _load(trial)
    except Exception as error:
        seen.append(repr(error))
    del watched[trial.name]
    sys.modules.pop(trial.name, None)
    return seen == ["body", "hook"] and type(trial) is ModuleSpec


SPECS_TELL = _specs_tell()

_xpu_sitecustomize.find_spec = find_spec
