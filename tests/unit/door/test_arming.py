"""When the capabilities' modules are watched, and what happens then."""

from __future__ import annotations

from pathlib import Path

import pytest

from venvs import ROOT
from venvs import Venv
from verl_xpu_shim import capability
from xpu_sitecustomize.watchlist import WATCHLIST

from .test_hook import write

#: Small packages of the names that matter. `verl_xpu_shim` stands for ours, at the edge of the door: it takes notes.
FILES = {
    "verl/__init__.py": "import verl.utils",
    "verl/utils/__init__.py": "",
    "verl/utils/model.py": "from torch.distributed import all_reduce",
    "verl/trainer/__init__.py": "",
    "verl/trainer/main.py": "import verl.utils.model, verl_xpu_shim; print(__name__, verl_xpu_shim.applied)",
    "vllm/__init__.py": "",
    "torch/__init__.py": "import torch.version, torch.distributed",
    "torch/version.py": "xpu = None",
    "torch/distributed/__init__.py": "from torch.distributed.distributed_c10d import all_reduce",
    "torch/distributed/distributed_c10d.py": "def all_reduce(): return 'old'",
    "verl_xpu_shim/__init__.py": "applied = []",
    "verl_xpu_shim/policy.py": """
import verl_xpu_shim
def apply(capability, module):
    verl_xpu_shim.applied.append((capability, module.__name__))
    if capability == 'reduce_avg': module.all_reduce = lambda: 'new'
""",
}
ALL_REDUCE = ("reduce_avg", "torch.distributed.distributed_c10d")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, FILES)
    return tmp_path


def test_watchlist_is_what_the_capabilities_patch() -> None:
    files = (ROOT / "src/verl_xpu_shim/patches").glob("[!_]*.py")
    here = {file.stem for file in files}
    wanted: dict[str, set[str]] = {}
    for name in capability.NAMES:
        if name in here:
            for target in capability.load(name).targets:
                wanted.setdefault(target.module, set()).add(name)
    assert {module: set(names) for module, names in WATCHLIST.items()} == wanted
    assert all(len(names) == len(set(names)) for names in WATCHLIST.values())


def test_torch_alone_is_left_alone(venv: Venv, folder: Path) -> None:
    body = """
        import sys, importlib.util
        assert importlib.util.find_spec('verl') and importlib.util.find_spec('vllm')
        import torch
        assert torch.distributed.all_reduce() == 'old'
        assert 'verl_xpu_shim' not in sys.modules
        assert 'torch.distributed.distributed_c10d' not in sys.modules['_xpu_sitecustomize'].watched
    """
    assert venv.run(body, cwd=folder).err == ""


@pytest.mark.parametrize("order", ["import torch, verl", "import verl, torch", "import vllm, torch"])
def test_the_body_of_a_root_arms(venv: Venv, folder: Path, order: str) -> None:
    body = f"""
        {order}
        import verl_xpu_shim
        assert verl_xpu_shim.applied == [{ALL_REDUCE}], verl_xpu_shim.applied
        assert torch.distributed.all_reduce() == 'new'
        import vllm, verl.utils.model
        assert verl_xpu_shim.applied[1:] == [('attention_default', 'verl.utils.model')]
    """
    assert venv.run(body, cwd=folder).err == ""


def test_minus_m(venv: Venv, folder: Path) -> None:
    done = venv("-m", "verl.trainer.main", cwd=folder)
    assert done.lines() == [f"__main__ {[ALL_REDUCE, ('attention_default', 'verl.utils.model')]}"]


def test_installed_late(venv: Venv, folder: Path) -> None:
    """As in a notebook: all is imported, and captured, by the time."""
    body = """
        import sys, verl, torch, verl.utils.model
        import xpu_sitecustomize
        assert not xpu_sitecustomize.is_installed() and xpu_sitecustomize.entered is None
        del __import__('os').environ['VERL_XPU_SHIM']
        assert xpu_sitecustomize.install() and xpu_sitecustomize.entered == 'import'
        assert torch.distributed.all_reduce() == verl.utils.model.all_reduce() == 'new'
        assert xpu_sitecustomize.install() and len(__import__('verl_xpu_shim').applied) == 2
    """
    assert venv.run(body, cwd=folder, VERL_XPU_SHIM="0").err == ""


def test_both_roots_at_once(venv: Venv, folder: Path) -> None:
    body = """
        import threading, torch
        for root in 'verl', 'vllm': threading.Thread(target=__import__, args=(root,)).start()
        for thread in threading.enumerate()[1:]: thread.join()
        import verl_xpu_shim
        assert len(verl_xpu_shim.applied) == 1, verl_xpu_shim.applied
    """
    assert venv.run(body, cwd=folder).err == ""


def test_without_the_capabilities_one_line(venv: Venv, folder: Path) -> None:
    write(folder, {"verl_xpu_shim/policy.py": "import nothing_of_that_name"})
    done = venv.run("import verl, torch, verl.utils.model", cwd=folder)
    done.one_line("nothing_of_that_name", "VERL_XPU_SHIM=0")


def test_without_the_capabilities_an_xpu_build_is_refused(venv: Venv, folder: Path) -> None:
    write(folder, {"verl_xpu_shim/policy.py": "import nothing_of_that_name", "torch/version.py": "xpu = '20250301'"})
    for order in ("import torch, verl", "import verl, torch"):
        done = venv.run(order, cwd=folder, code=1)
        assert "Refused: verl-xpu-shim: cannot import verl_xpu_shim" in done.err
        assert "torch.distributed.distributed_c10d" in done.err.splitlines()[-1]


def test_refused_again_at_the_next_attempt(venv: Venv, folder: Path) -> None:
    write(
        folder,
        {
            "verl_xpu_shim/policy.py": """
from xpu_sitecustomize import Refused
import verl_xpu_shim
def apply(capability, module):
    verl_xpu_shim.applied.append(capability)
    raise Refused(capability)
"""
        },
    )
    body = """
        import sys, torch
        for _ in range(3):
            try: import verl
            except RuntimeError as error: assert str(error) == 'reduce_avg'
            else: raise AssertionError
            assert 'verl' not in sys.modules
        import verl_xpu_shim
        assert verl_xpu_shim.applied == ['reduce_avg'] * 3
    """
    assert venv.run(body, cwd=folder).err == ""
