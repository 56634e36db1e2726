"""One task on each node of a Ray cluster: is the shim there, the same as here, and does Ray see the devices."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import importlib_metadata


def nodes(address: str) -> Iterator[tuple[bool, str]]:
    """Yield for each node whether all is well there, and a sentence.

    Args:
        address: of the cluster, as ``ray.init`` takes it: ``auto``, ``host:port`` or ``ray://host:port``.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = importlib_metadata.version("verl-xpu-shim")
    started = not ray.is_initialized()
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # whatever Ray raises for an address: the report goes on, and says so
        yield False, f"{address} can't be reached: {error}"
        return
    try:
        for node in ray.nodes():
            name, gpus = node["NodeManagerHostname"], int(node["Resources"].get("GPU", 0))
            if not node["Alive"]:
                yield True, f"{name} has left the cluster."
                continue
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(num_cpus=0, scheduling_strategy=where)(_by_value())
            try:
                yield _judge(name, gpus, here, ray.get(task.remote(), timeout=120))
            except Exception as error:  # a node that can't run a task is what is looked for
                yield False, f"{name} couldn't run a task: {str(error).splitlines()[0]}"
    finally:
        if started:
            ray.shutdown()


def _by_value() -> Callable[[], dict[str, Any]]:
    """Return what runs on a node. The shim may be missing there, so it is nested: such a function travels as code."""

    def look() -> dict[str, Any]:
        import importlib

        try:
            version = importlib.import_module("importlib_metadata").version("verl-xpu-shim")
            loaded = importlib.import_module("xpu_sitecustomize").is_installed()
        except ImportError:  # which PackageNotFoundError is, too
            return {"version": None, "in": False}
        return {"version": version, "in": loaded}

    return look


def _judge(name: str, gpus: int, here: str, found: dict[str, Any]) -> tuple[bool, str]:
    if found["version"] is None:
        return False, f"{name} lacks verl-xpu-shim: install {here} there."
    if found["version"] != here:
        return False, f"{name} has verl-xpu-shim {found['version']}, here is {here}: install the same everywhere."
    if not found["in"]:
        return False, f"{name} has verl-xpu-shim {here}, but its workers don't load it: see VERL_XPU_SHIM there."
    return True, f"{name} has verl-xpu-shim {here}; Ray sees {gpus} GPU(s) there."
