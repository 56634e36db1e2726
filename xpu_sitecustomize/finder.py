"""What the finder does for a watched module: see its body begin and end, run the hooks, mend what was captured.

The module's loader stays what it is. importlib sets ``ModuleSpec._initializing`` to True right before a body and to
False right after it, under the module's import lock and with no frame below the body; so for the time of one import the
spec gets a class that notices, and then its own class back. Where that flag plays no part (a reload, a lazy load), or
in an importlib that no longer has it, a stand-in for the loader puts the loader back as its first act.
"""

from __future__ import annotations

import sys
from _frozen_importlib import ModuleSpec
from _thread import _local
from typing import TYPE_CHECKING
from typing import Any

import _xpu_sitecustomize
from _xpu_sitecustomize import complain
from _xpu_sitecustomize import running
from _xpu_sitecustomize import watched

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Sequence
    from importlib.abc import Loader
    from types import ModuleType

    Hook = Callable[[ModuleType], object]

ROOTS = ("verl", "vllm")

_asking = _local()


class Refused(RuntimeError):
    """Raised by a hook to stop the import: going on without it would give wrong results."""


def find(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """Return the spec that the finders behind ours have for the watched module `name`, ready to see its body."""
    names: tuple[str, ...] = getattr(_asking, "names", ())
    if name in names:  # a finder behind ours asks all of sys.meta_path for what it was asked
        return None
    _asking.names = (*names, name)
    try:
        spec = _ask_behind(name, path, target)
    finally:
        _asking.names = names
    if type(spec) is ModuleSpec:
        if target is None and specs_tell():
            spec.__class__ = Spec
        elif hasattr(spec.loader, "exec_module"):
            spec.loader = StandIn(spec, reload=target is not None)  # type: ignore[assignment]
    return spec


def _ask_behind(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    finders = iter(tuple(sys.meta_path))
    for finder in finders:
        if finder is _xpu_sitecustomize:
            break
    for finder in finders:
        try:
            find_spec = finder.find_spec
        except AttributeError:  # skipped by importlib as well
            continue
        spec = find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


class Spec(ModuleSpec):
    """A spec for the time of one import."""

    @property
    def _initializing(self) -> bool:
        return bool(self.__dict__.get("_initializing"))

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        if value:
            self.__dict__["_initializing"] = True
            self._begins()
        elif self._initializing:  # and stays so for other threads: they wait for the hooks as they do for the body
            try:
                self._ends()
            finally:
                self.__class__ = ModuleSpec  # type: ignore[assignment]
                self._initializing = False

    @property
    def loader(self) -> Loader | None:
        return self.__dict__["loader"]  # type: ignore[no-any-return]

    @loader.setter
    def loader(self, value: Loader | None) -> None:
        before = self.__dict__.get("loader")
        self.__dict__["loader"] = value
        if value is not None and getattr(before, "loader", None) is value:
            # importlib.util.LazyLoader puts its loader back: the first use of the module will call exec_module on that
            self.__dict__["loader"] = StandIn(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return ModuleSpec.__new__, (ModuleSpec,), self.__dict__  # a copy is a plain spec

    def _begins(self) -> None:
        begins(self)

    def _ends(self) -> None:
        if not isinstance(self.loader, StandIn):
            ends(self)


Spec.__name__ = Spec.__qualname__ = ModuleSpec.__name__  # what repr() shows


class StandIn:
    """Stands in for the loader of `spec` until the body runs."""

    def __init__(self, spec: ModuleSpec, *, reload: bool = False) -> None:
        self._spec = spec
        self._loader: Any = spec.loader
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
        ends(spec, reload=self._reload)

    # its frame is importlib's business, not the user's: warnings and tracebacks leave it out
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")


def specs_tell() -> bool:
    """Whether this importlib sets the flag round a body. Tried out once, on a module of no one's."""
    global _tells
    if _tells is None:
        seen: list[str] = []

        class Trial(Spec):
            _begins = lambda self: seen.append("begins")  # noqa: E731
            _ends = lambda self: seen.append("ends")  # noqa: E731

        class Body:
            create_module = staticmethod(lambda spec: None)
            exec_module = staticmethod(lambda module: seen.append("body"))

        trial = Trial("xpu_sitecustomize._trial", Body)  # type: ignore[arg-type]
        try:
            from _frozen_importlib import _load  # type: ignore[attr-defined]

            _load(trial)
        except Exception as error:
            seen.append(repr(error))
        sys.modules.pop(trial.name, None)
        _tells = seen == ["begins", "body", "ends"] and type(trial) is ModuleSpec
    return _tells


_tells: bool | None = None


def begins(spec: ModuleSpec) -> None:
    """The body of a watched module is about to run."""
    if spec.name in ROOTS:
        arm()
    running[id(spec)] = []


def ends(spec: ModuleSpec, *, reload: bool = False) -> None:
    """The body of a watched module has run, or has failed."""
    name = spec.name
    imported = running.pop(id(spec), [])
    module = sys.modules.get(name)
    if module is None:  # failed
        return
    _at_hooks.append(name)
    try:
        run(name, module, watched.get(name, []), imported)
    except Refused:
        if not reload:
            sys.modules.pop(name, None)
        raise
    finally:
        _at_hooks.remove(name)


#: Modules whose hooks are being run, from the list in `watched` itself: what is added to that now is still called.
_at_hooks: list[str] = []


def run(name: str, module: ModuleType, hooks: list[Hook], holders: Iterable[str]) -> None:
    """Run `hooks` on a module, then give the modules named in `holders` the new where they hold the old."""
    before = dict(_space(module))
    package = _bind_to_parent(name, module)
    try:
        for hook in hooks:
            _call(hook, name, module)
    except Refused:
        if package is not None:
            delattr(package, name.rpartition(".")[2])
        raise
    after = _space(module)
    moved = {id(old): after[key] for key, old in before.items() if after.get(key, old) is not old and callable(old)}
    if moved:
        # who replaces keeps the original: that is not a capture
        own = {
            "xpu_sitecustomize",
            "verl_xpu_shim",
            *(str(getattr(hook, "__module__", "")).partition(".")[0] for hook in hooks),
        }
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
                spec.loader = StandIn(spec)  # type: ignore[assignment]
            return
        if getattr(spec, "_initializing", False):
            spec.__class__ = Spec
    if type(spec) is Spec:
        if spec._initializing or isinstance(spec.loader, StandIn):
            return
        spec.__class__ = ModuleSpec  # type: ignore[assignment]  # another thread got to the end of the body in between
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
