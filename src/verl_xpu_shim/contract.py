"""What a patch target must look like: requirements as data, held against code objects.

A requirement reads a module through a :class:`View`: :class:`LiveView` of a module that has been imported, or
:class:`SourceView` of a file that hasn't. Both answer from code objects, so ``verl-xpu-shim check`` judges an
installation without importing it by the very rules that guard the patch in a running process.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from types import ModuleType
from typing import Any
from typing import Final
from typing import Protocol
from typing import TypeAlias


class View(Protocol):
    """One module, as a requirement sees it."""

    def code(self, symbol: str) -> tuple[CodeType, ...]:
        """The code objects that define ``symbol`` (dotted below the module); empty where there is none."""
        ...

    def names(self) -> frozenset[str]:
        """What the module binds at its top level."""
        ...

    def abstract_methods(self, symbol: str) -> frozenset[str] | None:
        """The abstract methods of class ``symbol``; None where there is no such class."""
        ...


class Requirement(Protocol):
    """A fact about a module that a patch leans on."""

    @property
    def expected(self) -> str:
        """The fact, for a report."""
        ...

    def found(self, view: View) -> str | None:
        """What is there instead, or None where the fact holds."""
        ...


@dataclass(frozen=True)
class Defines:
    """The module binds every one of ``names``."""

    names: tuple[str, ...]

    @property
    def expected(self) -> str:
        return f"defines {', '.join(self.names)}"

    def found(self, view: View) -> str | None:
        missing = [name for name in self.names if name not in view.names()]
        return f"no {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class Parameters:
    """Function ``symbol`` takes exactly ``names``, in this order; with ``at_least``, these among others."""

    symbol: str
    names: tuple[str, ...]
    at_least: bool = False

    @property
    def expected(self) -> str:
        return f"{self.symbol}({', '.join(self.names)}{', …' if self.at_least else ''})"

    def found(self, view: View) -> str | None:
        codes = view.code(self.symbol)
        signatures = [_parameters(code) for code in codes]
        if any(set(self.names) <= set(names) if self.at_least else names == self.names for names in signatures):
            return None
        if not codes:
            return f"no function {self.symbol}"
        return " or ".join(f"{self.symbol}({', '.join(names)})" for names in signatures)


@dataclass(frozen=True)
class Constant:
    """``value`` is ``count`` times among the constants of function ``symbol``."""

    symbol: str
    value: Any
    count: int = 1

    @property
    def expected(self) -> str:
        return f"the constant {self.value!r} {self.count} time(s) in {self.symbol}"

    def found(self, view: View) -> str | None:
        codes = view.code(self.symbol)
        counts = [sum(_same(constant, self.value) for constant in code.co_consts) for code in codes]
        if self.count in counts:
            return None
        return f"{' or '.join(map(str, counts))} time(s)" if codes else f"no function {self.symbol}"


@dataclass(frozen=True)
class Mentions:
    """Function ``symbol`` looks up every one of ``names`` (globals or attributes)."""

    symbol: str
    names: tuple[str, ...]

    @property
    def expected(self) -> str:
        return f"{self.symbol} uses {', '.join(self.names)}"

    def found(self, view: View) -> str | None:
        codes = view.code(self.symbol)
        if not codes:
            return f"no function {self.symbol}"
        missing = [name for name in self.names if not any(name in _names_used(code) for code in codes)]
        return f"no use of {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class AbstractMethods:
    """Class ``symbol`` asks of its subclasses no more than ``names``."""

    symbol: str
    names: frozenset[str]

    @property
    def expected(self) -> str:
        return f"no abstract method of {self.symbol} but the {len(self.names)} known ones"

    def found(self, view: View) -> str | None:
        methods = view.abstract_methods(self.symbol)
        if methods is None:
            return f"no class {self.symbol}"
        return f"also {', '.join(sorted(methods - self.names))}" if methods - self.names else None


def broken(requirements: Iterable[Requirement], view: View) -> list[tuple[str, str]]:
    """Return ``(expected, found)`` for every requirement that doesn't hold."""
    return [(each.expected, found) for each in requirements if (found := each.found(view)) is not None]


class LiveView:
    """A module that has been imported."""

    def __init__(self, module: ModuleType) -> None:
        self._module: Final = module

    def code(self, symbol: str) -> tuple[CodeType, ...]:
        value = self._resolve(symbol)
        if isinstance(value, property):
            value = value.fget
        code = getattr(inspect.unwrap(value) if callable(value) else None, "__code__", None)
        return (code,) if isinstance(code, CodeType) else ()

    def names(self) -> frozenset[str]:
        return frozenset(vars(self._module))

    def abstract_methods(self, symbol: str) -> frozenset[str] | None:
        value = self._resolve(symbol)
        return frozenset(getattr(value, "__abstractmethods__", ())) if isinstance(value, type) else None

    def _resolve(self, symbol: str) -> Any:
        value: Any = self._module
        for name in symbol.split("."):
            value = inspect.getattr_static(value, name, None)
            # A class that its module hands to Ray at once: the code is that of the class inside the actor class.
            value = getattr(getattr(value, "__ray_metadata__", None), "modified_class", value)
        return getattr(value, "__func__", value)  # a static or class method


class SourceView:
    """A module's file, compiled but never run."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path

    @functools.cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self._path.read_bytes(), str(self._path))

    @functools.cached_property
    def _code(self) -> CodeType:
        # No optimisation but what every interpreter does: constants must be those of a running process.
        return compile(self._tree, str(self._path), "exec", dont_inherit=True)

    def code(self, symbol: str) -> tuple[CodeType, ...]:
        codes = [self._code]
        for name in symbol.split("."):
            codes = [inner for outer in codes for inner in _inner(outer) if inner.co_name == name]
        return tuple(codes)

    def names(self) -> frozenset[str]:
        stores = ("STORE_NAME", "STORE_GLOBAL")
        return frozenset(str(op.argval) for op in dis.get_instructions(self._code) if op.opname in stores)

    def abstract_methods(self, symbol: str) -> frozenset[str] | None:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ClassDef) and node.name == symbol:
                return frozenset(
                    method.name
                    for method in node.body
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
                    and any("abstract" in ast.unparse(decorator) for decorator in method.decorator_list)
                )
        return None


def replace_constant(code: CodeType, old: Any, new: Any) -> CodeType:
    """Return ``code`` with the constant ``old`` replaced by ``new``.

    Raises:
        LookupError: ``old`` isn't exactly once among the constants.
    """
    count = sum(_same(constant, old) for constant in code.co_consts)
    if count != 1:
        raise LookupError(f"{code.co_name}: the constant {old!r} is there {count} times, not once")
    return code.replace(co_consts=tuple(new if _same(constant, old) else constant for constant in code.co_consts))


def _parameters(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _same(constant: Any, value: Any) -> bool:
    # 1, 1.0 and True are equal; as constants they are not the same.
    return type(constant) is type(value) and constant == value


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _names_used(code: CodeType) -> frozenset[str]:
    return frozenset(code.co_names).union(*map(_names_used, _inner(code)))


#: What a capability hands to :class:`~verl_xpu_shim.capability.Target` as its contract.
Contract: TypeAlias = tuple[Requirement, ...]
