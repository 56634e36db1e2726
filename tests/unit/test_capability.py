"""Edits: all or nothing, undone in order, recognisable, invisible to whoever inspects a wrapper."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from verl_xpu_shim.capability import MARK
from verl_xpu_shim.capability import NAMES
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import load


class Parent:
    def inherited(self) -> str:
        return "parent"


class Subject(Parent):
    def method(self, stage: str, *, retries: int = 3) -> str:
        "Do it."
        return "flash" + stage


@pytest.fixture
def module() -> ModuleType:
    module = ModuleType("subject")

    def reduce(tensor: Any, op: int = 0) -> str:
        return "flash"

    class Fresh(Subject):
        method = Subject.method

    module.reduce, module.Fresh = reduce, Fresh  # type: ignore[attr-defined]
    return module


def shout(original: Callable[..., str]) -> Callable[..., str]:
    def wrapper(*args: Any, **kwargs: Any) -> str:
        return original(*args, **kwargs).upper()

    return wrapper


def test_a_wrapper_keeps_name_documentation_and_signature_and_carries_the_mark(module: ModuleType) -> None:
    original = module.Fresh.method
    edit = Edit("platform")
    edit.wrap(module.Fresh, "method", shout)
    wrapped = module.Fresh.method
    assert wrapped is not original
    assert module.Fresh().method("x") == "FLASHX"
    assert (wrapped.__name__, wrapped.__doc__) == ("method", "Do it.")
    assert inspect.signature(wrapped) == inspect.signature(original)
    assert getattr(wrapped, MARK) == "platform"


def test_wrapping_twice_wraps_once(module: ModuleType) -> None:
    Edit("platform").wrap(module, "reduce", shout)
    once = module.reduce
    again = Edit("platform")
    again.wrap(module, "reduce", shout)
    assert module.reduce is once
    assert again.changes == []
    assert again.notes == ["reduce: already patched"]


def test_undo_restores_every_original_and_forgets_what_was_inherited(module: ModuleType) -> None:
    before = module.reduce
    edit = Edit("platform")
    edit.wrap(module, "reduce", shout)
    edit.replace(module, "added", 1)
    edit.wrap(module.Fresh, "inherited", shout)
    edit.undo()
    assert module.reduce is before
    assert not hasattr(module, "added")
    assert "inherited" not in vars(module.Fresh)
    assert edit.changes == []


def test_a_constant_is_replaced_in_the_very_function_that_others_captured(module: ModuleType) -> None:
    captured = module.reduce
    edit = Edit("attention_default")
    edit.constant(module.reduce, "flash", "sdpa")
    assert captured(None) == "sdpa"
    again = Edit("attention_default")
    again.constant(module.reduce, "flash", "sdpa")
    assert again.changes == []
    edit.undo()
    assert captured(None) == "flash"
    assert not hasattr(captured, MARK)


def test_a_constant_that_is_not_there_changes_nothing(module: ModuleType) -> None:
    code = module.reduce.__code__
    with pytest.raises(LookupError, match="'torch'"):
        Edit("attention_default").constant(module.reduce, "torch", "sdpa")
    assert module.reduce.__code__ is code


@pytest.mark.parametrize("name", NAMES)
def test_every_documented_capability_loads_under_its_name(name: str) -> None:
    capability = load(name)
    assert capability.name == name
    assert capability.summary
    assert capability.targets
    assert len({target.module for target in capability.targets}) == len(capability.targets)
