"""Requirements, held against a live module and against its file: both must say the same."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from verl_xpu_shim.contract import AbstractMethods
from verl_xpu_shim.contract import Constant
from verl_xpu_shim.contract import Defines
from verl_xpu_shim.contract import LiveView
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.contract import Requirement
from verl_xpu_shim.contract import SourceView
from verl_xpu_shim.contract import broken
from verl_xpu_shim.contract import replace_constant

SOURCE = """
import abc, contextlib, functools
from os.path import join as glue

LIMIT: int = 3

def reduce(tensor, op=1, group=None, *, wait=True):
    return glue(tensor, [1, True, 1.0])

@contextlib.contextmanager
def timer(name, raw):
    yield

class Base(abc.ABC):
    @property
    @abc.abstractmethod
    def device(self): ...

    @abc.abstractmethod
    def count(self): ...

    def free(self): ...

class Server:
    @classmethod
    def register(cls, key): ...

    def __init__(self, tool, default="flash"):
        if tool not in ["torch", "npu"]:
            raise ValueError(tool)
        self.tool = (lambda: hidden(tool))()

def hidden(x): return x
"""

HELD: list[Requirement] = [
    Defines(("glue", "LIMIT", "reduce", "Base")),
    Parameters("reduce", ("tensor", "op", "group", "wait")),
    Parameters("reduce", ("group",), at_least=True),
    Parameters("timer", ("name", "raw")),
    Parameters("Server.register", ("cls", "key")),
    Parameters("Server.__init__", ("self", "tool", "default")),
    Constant("Server.__init__", ("torch", "npu")),
    Constant("Server.__init__", "cuda", count=0),
    Mentions("reduce", ("glue",)),
    Mentions("Server.__init__", ("hidden",)),
    AbstractMethods("Base", frozenset({"device", "count", "more"})),
]
BROKEN: list[tuple[Requirement, str]] = [
    (Defines(("LIMIT", "LIMITS")), "no LIMITS"),
    (Parameters("reduce", ("tensor", "op", "group")), "reduce(tensor, op, group, wait)"),
    (Parameters("reduce", ("dst",), at_least=True), "reduce(tensor, op, group, wait)"),
    (Parameters("scatter", ()), "no function scatter"),
    (Parameters("Server.missing", ()), "no function Server.missing"),
    (Parameters("LIMIT", ()), "no function LIMIT"),
    (Constant("Server.__init__", ("torch",)), "0 time(s)"),
    (Constant("nobody", 1), "no function nobody"),
    (Mentions("reduce", ("glue", "hidden")), "no use of hidden"),
    (AbstractMethods("Base", frozenset({"count"})), "also device"),
    (AbstractMethods("LIMIT", frozenset()), "no class LIMIT"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("contract") / "subject.py"
    path.write_text(textwrap.dedent(SOURCE))
    return path


@pytest.fixture(scope="module", params=["live", "source"])
def view(request: pytest.FixtureRequest, path: Path) -> LiveView | SourceView:
    if request.param == "source":
        return SourceView(path)
    spec = importlib.util.spec_from_file_location("subject", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return LiveView(module)


@pytest.mark.parametrize("requirement", HELD, ids=lambda each: type(each).__name__)
def test_what_holds_is_not_reported(view: LiveView | SourceView, requirement: Requirement) -> None:
    assert broken([requirement], view) == []


@pytest.mark.parametrize(("requirement", "found"), BROKEN, ids=lambda each: type(each).__name__)
def test_a_drift_says_what_was_expected_and_what_is_there(
    view: LiveView | SourceView, requirement: Requirement, found: str
) -> None:
    assert broken([requirement], view) == [(requirement.expected, found)]


def test_a_source_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "bomb.py").write_text("raise SystemExit\ndef f(a): ...\n")
    assert broken([Parameters("f", ("a",))], SourceView(tmp_path / "bomb.py")) == []


def test_replace_constant_tells_equal_constants_of_different_types_apart() -> None:
    code = (lambda: [1, True, 1.0][2]).__code__
    tuples = [each for each in code.co_consts if isinstance(each, tuple)]
    assert tuples, "the list is no tuple constant on this Python: choose another subject"
    plain = compile("x = 1.0; y = True", "f", "exec")
    assert [repr(each) for each in replace_constant(plain, True, 7).co_consts[:2]] == ["1.0", "7"]


def test_replace_constant_refuses_what_is_not_exactly_once() -> None:
    def function() -> str:
        return "flash"

    assert replace_constant(function.__code__, "flash", "sdpa").co_consts.count("sdpa") == 1
    with pytest.raises(LookupError, match="0 times, not once"):
        replace_constant(function.__code__, "absent", "sdpa")


def test_live_view_of_an_empty_module_has_nothing() -> None:
    view = LiveView(ModuleType("empty"))
    assert view.code("f") == ()
    assert view.abstract_methods("C") is None
