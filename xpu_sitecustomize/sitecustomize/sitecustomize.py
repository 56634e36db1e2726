"""The way in for an environment that can't be installed into: PYTHONPATH="$(verl-xpu-shim path)".

There can be only one ``sitecustomize``, so this one runs the next on the path, which it hides, as if it were not there.
"""

import os
import sys
from _frozen_importlib import ModuleSpec, module_from_spec
from _frozen_importlib_external import PathFinder

HERE = os.path.dirname(os.path.realpath(__file__))
HOME = os.path.dirname(os.path.dirname(HERE))


class Beside:
    """Last on ``sys.meta_path``: finds our packages where this folder lies, and nothing else of what lies there."""

    folders = (HOME, os.path.join(HOME, "src"), os.path.join(HOME, "xpu_sitecustomize", "startup"))

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if name in ("_xpu_sitecustomize", "xpu_sitecustomize", "verl_xpu_shim"):
            return PathFinder.find_spec(name, cls.folders)
        return None


def start() -> None:
    sys.meta_path.append(Beside)
    try:
        import _xpu_sitecustomize

        if not _xpu_sitecustomize.start("sitecustomize"):
            sys.meta_path.remove(Beside)
    except BaseException as error:
        print("verl-xpu-shim: not loaded:", repr(error), file=sys.stderr)


def run_next() -> None:
    folders = [os.path.realpath(folder) for folder in sys.path]
    if HERE not in folders:
        return
    # only what lies behind us: two that each skip no more than themselves would run each other for ever
    behind = range(folders.index(HERE) + 1, len(folders))
    spec = PathFinder.find_spec("sitecustomize", [sys.path[n] for n in behind if folders[n] != HERE])
    if spec is None or spec.loader is None:
        return
    ours = sys.modules["sitecustomize"]
    sys.modules["sitecustomize"] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules["sitecustomize"] = ours
        raise


start()
run_next()
