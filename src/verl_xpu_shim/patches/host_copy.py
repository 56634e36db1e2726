"""``host_copy``: what verl copies from the device with ``non_blocking=True`` may not have arrived when it is read.

On CUDA such a copy goes to pinned memory, or is synchronous, so verl's offload functions return without waiting. On
XPU it is queued either way (pytorch/pytorch#189327, intel/torch-xpu-ops#4349) and the host reads what was there
before. Can go once a copy to pageable memory waits on XPU as it does on CUDA.

Checkpoints: verl offloads FSDP1's shards on CUDA only, and saves the optimizer from where it is. Files with ``xpu:3``
in them load neither with fewer devices nor on a machine without any. What verl saves says ``cpu``, storages and
devices alike: an optimizer takes a DTensor at its word, and wouldn't move a state that says ``xpu`` back there.
"""

from __future__ import annotations

import contextvars
import copyreg
from collections.abc import Callable
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import MARK
from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Change
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Defines
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.platform import on_xpu

BEFORE_TORCH_S_OWN: Final = 5
"""Priority of our tagger: that of torch's first, for CPU storages, is 10 and lower comes earlier."""

_saving: Final = contextvars.ContextVar("verl_xpu_shim.saving_a_checkpoint", default=False)


def _then_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if on_xpu():
            import torch

            torch.xpu.synchronize()
        return result

    return wait


def _wait_then_free(original: Callable[..., Any]) -> Callable[..., Any]:
    def offload(model: Any, empty_cache: bool = True) -> Any:
        if not on_xpu():
            return original(model, empty_cache)
        import torch

        # The memory that is being copied from mustn't go back to the driver while it is read.
        result = original(model, empty_cache=False)
        torch.xpu.synchronize()
        if empty_cache:
            torch.xpu.empty_cache()
        return result

    return offload


def _offload(module: ModuleType, edit: Edit) -> None:
    edit.wrap(module, "offload_fsdp_model_to_cpu", _wait_then_free)
    edit.wrap(module, "offload_fsdp2_model_to_cpu", _wait_then_free)
    edit.wrap(module, "offload_fsdp_optimizer", _then_wait)
    edit.wrap(module, "fsdp2_load_full_state_dict", _then_wait)


def _tag(storage: Any) -> str | None:
    """For torch.save: where a storage is to be put when it is loaded; None leaves that to the next tagger."""
    return "cpu" if _saving.get() and storage.device.type == "xpu" else None


def _reducer(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """For pickle: a device, as which a DTensor remembers where it was beside its storage."""

    def reduce(device: Any) -> Any:
        return (type(device), ("cpu",)) if _saving.get() and device.type == "xpu" else original(device)

    setattr(reduce, MARK, "host_copy")
    return reduce


def _checkpoint(module: ModuleType, edit: Edit) -> None:
    import torch
    from torch import serialization

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            token = _saving.set(on_xpu())
            try:
                return original(*args, **kwargs)
            finally:
                _saving.reset(token)

        return save_checkpoint

    edit.wrap(module.FSDPCheckpointManager, "save_checkpoint", make)
    # All that this module asks of it is whether to gather FSDP1's shards on the device or on the host.
    edit.replace(module, "is_cuda_available", True)

    registry: list[Any] = serialization._package_registry
    if all(entry[1] is not _tag for entry in registry):
        serialization.register_package(BEFORE_TORCH_S_OWN, _tag, lambda storage, location: None)
        entry = next(entry for entry in registry if entry[1] is _tag)
        edit.changed(Change(serialization, "_package_registry", None, _tag), lambda: registry.remove(entry))
    reducers = copyreg.dispatch_table
    theirs = reducers.get(torch.device)
    if not hasattr(theirs, MARK):
        ours = reducers[torch.device] = _reducer(theirs or torch.device.__reduce__)
        change = Change(copyreg, "dispatch_table[torch.device]", theirs, ours)
        edit.changed(change, lambda: reducers.update({torch.device: theirs}) if theirs else reducers.pop(torch.device))


def _tensordict(module: ModuleType, edit: Edit) -> None:
    """``TensorDict.to("cpu")``, which returns every worker's results, waits for XPU from tensordict 0.10 on only."""
    if "_get_available_device_type" in module.TensorDictBase._sync_all.__code__.co_names:
        edit.notes.append("this tensordict waits by itself")
        return

    def make(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def sync_all(self: Any) -> None:
            import torch

            original(self)
            if not torch.compiler.is_compiling() and torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
                torch.xpu.synchronize()

        return sync_all

    edit.wrap(module.TensorDictBase, "_sync_all", make)


CAPABILITY: Final = Capability(
    name="host_copy",
    required=True,
    summary="device-to-host copies are complete before the host reads them; checkpoints hold CPU tensors",
    targets=(
        Target(
            "verl.utils.fsdp_utils",
            _offload,
            (
                Parameters("offload_fsdp_model_to_cpu", ("model", "empty_cache")),
                Parameters("offload_fsdp2_model_to_cpu", ("model", "empty_cache")),
                Parameters("offload_fsdp_optimizer", ("optimizer",)),
                Defines(("fsdp2_load_full_state_dict",)),
            ),
        ),
        Target(
            "verl.utils.checkpoint.fsdp_checkpoint_manager",
            _checkpoint,
            (
                Mentions("FSDPCheckpointManager.save_checkpoint", ("is_cuda_available", "save")),
                Mentions("FSDPCheckpointManager.load_checkpoint", ("is_cuda_available",)),
            ),
        ),
        Target("tensordict.base", _tensordict, (Parameters("TensorDictBase._sync_all", ("self",)),)),
    ),
)
