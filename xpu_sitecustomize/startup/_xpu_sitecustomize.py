"""The finder of `xpu_sitecustomize`: all that an interpreter start loads, copied beside the .pth that calls `start`."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

#: Module name -> its hooks. The first of these two roots to run adds what the capabilities patch.
watched: "dict[str, list[Callable[[ModuleType], object]]]" = {"verl": [], "vllm": []}
#: How the finder came in ("pth", "sitecustomize", "import"); None while it is not on sys.meta_path.
entered: "str | None" = None


def find_spec(
    name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
) -> "ModuleSpec | None":
    """As this module is the first entry of ``sys.meta_path``: None, at once, unless `name` is watched.

    `xpu_sitecustomize.finder` is loaded by the first that is, and puts its own find_spec in the place of this one.
    """
    if name in watched:
        try:
            from xpu_sitecustomize import finder
        except (Exception, SystemExit) as error:
            complain(f"cannot be loaded, so nothing is patched in this process: {error!r}")
        else:
            return finder.find_spec(name, path, target)
    return None


def start(how: str = "pth") -> bool:
    """Get on ``sys.meta_path`` unless ``VERL_XPU_SHIM`` says no; whether we are there. Never raises."""
    global entered
    import os  # not a global: what sys.meta_path leads to is torn down last, and at a price

    try:
        if entered is None and os.environ.get("VERL_XPU_SHIM", "").strip().lower() not in ("0", "off", "false", "no"):
            sys.meta_path.insert(0, sys.modules[__name__])
            entered = how
            if os.environ.get("VERL_XPU_SHIM_TRACE", "0") not in ("", "0"):
                from xpu_sitecustomize import environ

                if environ("VERL_XPU_SHIM_TRACE"):
                    from verl_xpu_shim import trace

                    trace.start(how)
    except BaseException as error:  # SystemExit and KeyboardInterrupt, too, would end every interpreter of the venv
        complain(repr(error))
    return entered is not None


def complain(text: str) -> None:
    """One line on stderr, where there is one."""
    if sys.stderr:
        print("verl-xpu-shim:", " ".join(text.split()), file=sys.stderr)
