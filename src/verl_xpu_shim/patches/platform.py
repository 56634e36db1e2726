"""``platform``: verl has no platform for Intel GPUs, so it falls back to ``nvidia`` and asks for NCCL.

Can go once verl registers one itself (verl-project/verl#7917 leaves it to plugins).
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Change
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import AbstractMethods
from verl_xpu_shim.contract import Defines
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.platform import refusals

#: What PlatformXPU implements; one more abstract method upstream and it couldn't be instantiated.
ABSTRACT: Final = frozenset(
    {
        "communication_backend_name",
        "cudart",
        "current_device",
        "device_count",
        "device_module",
        "device_name",
        "empty_cache",
        "get_device_capability",
        "is_available",
        "is_ipc_supported",
        "manual_seed",
        "manual_seed_all",
        "nvtx_range",
        "profiler_start",
        "profiler_stop",
        "ray_noset_envvars",
        "ray_resource_name",
        "set_allocator_settings",
        "set_device",
        "synchronize",
        "vendor_name",
        "visible_devices_envvar",
    }
)


def _register(module: ModuleType, edit: Edit) -> None:
    from verl_xpu_shim.platform.xpu import PlatformXPU

    registry = module.PlatformRegistry
    before = registry._platforms
    if "intel" in before:
        edit.notes.append(f"already: {before['intel'].__module__} registered it")
        return
    # First, since verl probes in this order, and a torch built for XPU can drive no other device of the host.
    registry._platforms = {"intel": PlatformXPU, **before}
    change = Change(registry, "_platforms['intel']", None, PlatformXPU)
    edit.changed(change, lambda: registry._platforms.pop("intel", None))


CAPABILITY: Final = Capability(
    name="platform",
    required=True,
    summary="registers the `intel` platform (device `xpu`, backend `xccl`)",
    targets=(
        Target(
            "verl.plugin.platform.platform_manager",
            _register,
            (
                Defines(("PlatformBase", "PlatformRegistry", "get_platform")),
                Parameters("PlatformRegistry.register", ("cls", "platform")),
                Parameters("_detect_platform_name", ()),
            ),
        ),
        Target(
            "verl.plugin.platform.platform_base",
            lambda module, edit: edit.notes.append("contract only"),
            (AbstractMethods("PlatformBase", ABSTRACT),),
        ),
        *refusals.TARGETS,
    ),
)
