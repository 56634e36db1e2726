"""Which device a Ray worker drives: the one Ray gave it, picked by index among all that the outer mask lets through.

oneCCL wants every device of a communicator visible in each of its processes: with one device a process through
``ZE_AFFINITY_MASK`` the first collective hangs (vllm-project/vllm#53076). So the mask stays what it was when the
worker was started, and ``torch.xpu.set_device`` picks.

What Ray's device ids mean depends on what Ray found:

===================  ====================  ============================================================
Ray                  narrows               a device id is
===================  ====================  ============================================================
>= 2.58 with dpctl   ZE_AFFINITY_MASK      what the mask calls the device
< 2.58 with dpctl    ONEAPI_DEVICE_SELECTOR  a position among the devices that the outer mask lets through
without dpctl        CUDA_VISIBLE_DEVICES  a position among torch's devices (``ray.init(num_gpus=N)``)
===================  ====================  ============================================================
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Final

import ray
import torch
from ray._private.accelerators import get_accelerator_manager_for_resource

from verl_xpu_shim.topology import sysman

MASK: Final = "ZE_AFFINITY_MASK"
SELECTOR: Final = "ONEAPI_DEVICE_SELECTOR"
UNSET: Final = "not set"
"""What verl's workers say of a mask that isn't set (``Worker.get_cuda_visible_devices``)."""

KEEP_MASK: Final = {f"RAY_EXPERIMENTAL_NOSET_{name}": "1" for name in (MASK, SELECTOR)}
"""Environment of a Ray actor that shall see all devices: with it Ray >= 2.58, or an older one, narrows nothing."""

NO_GPU: Final = (
    "Ray sees no GPU in this cluster, so no worker could ever start. On Intel GPUs Ray counts them with dpctl: install "
    "it (pip install dpctl) and restart Ray, or tell Ray how many there are: +ray_kwargs.ray_init.num_gpus=N with "
    "main_ppo, 'ray start --head --num-gpus=N' before any other trainer."
)

_log: Final = logging.getLogger("verl_xpu_shim")


class BindingError(RuntimeError):
    """The environment contradicts itself about devices; the text names the variables."""


def require_gpus() -> None:
    """Ask the cluster that this process is connected to whether it has any GPU.

    Raises:
        BindingError: it has none, and a placement group with a GPU would be waited for for ever.
    """
    if not ray.cluster_resources().get("GPU"):
        raise BindingError(NO_GPU)


def bind() -> int | None:
    """Make this Ray worker drive the device that Ray gave it and return its ordinal; None where Ray gave it none.

    ``LOCAL_RANK`` says the same afterwards. Of several devices it is the first.

    Raises:
        BindingError: a variable contradicts another, or what torch sees.
    """
    ids = ray.get_runtime_context().get_accelerator_ids()["GPU"] if ray.is_initialized() else []
    if not ids:
        return None
    narrowed = _restore_mask()
    try:
        return drive(min(map(_ordinal, ids)))
    except BindingError as error:
        if narrowed is None:
            raise
        raise BindingError(f"{error} {_too_late(narrowed)}") from None


def drive(ordinal: int) -> int:
    """Select ``xpu:ordinal`` for this process, and say so in ``LOCAL_RANK``."""
    torch.xpu.set_device(ordinal)
    os.environ["LOCAL_RANK"] = str(ordinal)
    _log.info("rank %s drives xpu:%d, %s=%s", os.environ.get("RANK"), ordinal, MASK, os.environ.get(MASK, UNSET))
    return ordinal


def device_of_mask(mask: str) -> int:
    """The ordinal of the first of the devices that ``mask`` names, among those that this process sees.

    Raises:
        BindingError: none of them is visible here.
    """
    named = sysman.parse_mask(mask) or frozenset()
    try:
        return next(ordinal for ordinal, index in enumerate(_visible()) if index in named)
    except StopIteration:
        raise BindingError(f"None of the devices {mask} is visible in this process: {_situation()}.") from None


def mask_of_device(ordinal: int) -> str:
    """What ``ZE_AFFINITY_MASK`` calls ``xpu:ordinal``."""
    return str(_visible()[ordinal])


def mask_of_ids(ids: str) -> str:
    """The mask that lets exactly the devices with the Ray ids in ``ids`` (comma-separated) through.

    Raises:
        BindingError: as `bind`.
    """
    return ",".join(mask_of_device(_ordinal(device)) for device in ids.split(","))


def _restore_mask() -> str | None:
    """Put back the mask that this worker was started with; return the one to which Ray had narrowed it, if it had."""
    if SELECTOR in os.environ:
        # An older Ray writes it, which shows in that there was none when the worker was started.
        if _ray_narrows() != SELECTOR or _outer_ids() is not None:
            raise BindingError(
                f"{SELECTOR}={os.environ[SELECTOR]} contradicts {MASK}={os.environ.get(MASK, UNSET)}: which device an "
                f"index means depends on which of the two is read. Unset {SELECTOR} and choose devices with {MASK}."
            )
        del os.environ[SELECTOR]
    now = outer = os.environ.get(MASK)
    if _ray_narrows() == MASK:
        entries = _outer_ids()
        outer = None if entries is None else ",".join(entries)
    if outer == "":
        raise BindingError(f"{MASK} is set but empty. Ray takes that for no device, Level Zero for no mask: unset it.")
    if now == outer:
        return None
    if torch.xpu.is_initialized():  # type: ignore[no-untyped-call]
        raise BindingError(f"This worker shall see every device. {_too_late(str(now))}")
    if outer is None:
        del os.environ[MASK]
    else:
        os.environ[MASK] = outer
    return now


def _too_late(narrowed: str) -> str:
    return (
        f"Ray had narrowed {MASK} to {narrowed} when something in this worker asked for the device. Start such a "
        f"worker with {' and '.join(f'{name}=1' for name in KEEP_MASK)} in its runtime_env."
    )


def _ordinal(device: str) -> int:
    """Torch's ordinal of the device with Ray's id ``device``, once the outer mask is back."""
    visible = _visible()
    try:
        match _ray_narrows():
            case "ZE_AFFINITY_MASK":
                return visible.index(int(device))
            case "ONEAPI_DEVICE_SELECTOR":
                mask = sysman.parse_mask(os.environ.get(MASK))
                return visible.index(int(device) if mask is None else sorted(mask)[int(device)])
            case _:
                outer = _outer_ids()
                position = int(device) if outer is None else outer.index(device)
                return visible.index(visible[position])
    except (ValueError, IndexError):
        raise BindingError(
            f"Ray gave this worker GPU {device!r}, which torch doesn't see: {_situation()}. "
            f"Ray's number of GPUs (ray_init.num_gpus, or what dpctl counts), {MASK} and "
            "ZE_FLAT_DEVICE_HIERARCHY have to agree; 'verl-xpu-shim doctor' shows all three."
        ) from None


def _visible() -> list[int]:
    """What ``ZE_AFFINITY_MASK`` calls each device, in torch's order."""
    count = torch.xpu.device_count()
    try:
        gpus = [gpu.mask_index for gpu in sysman.torch_gpus()]
        if len(gpus) == count:
            return gpus
    except ValueError as error:
        raise BindingError(str(error)) from None
    except sysman.Unavailable:
        pass  # no inventory: right for every host without integrated GPUs
    mask = sysman.parse_mask(os.environ.get(MASK))
    return list(range(count)) if mask is None else sorted(mask)[:count]


@functools.cache
def _ray_narrows() -> str:
    """The variable that this Ray, with what it found on this node, writes into a worker's environment."""
    return str(get_accelerator_manager_for_resource("GPU").get_visible_accelerator_ids_env_var())


def _outer_ids() -> list[str] | None:
    """The entries of that variable when this worker was started; None where it wasn't set."""
    ids: list[str] | None = ray._private.worker.global_worker.original_visible_accelerator_ids.get("GPU")
    return ids


def _situation() -> str:
    names = (MASK, SELECTOR, "ZE_FLAT_DEVICE_HIERARCHY")
    shown = ", ".join(f"{name}={os.environ.get(name, UNSET)}" for name in names)
    return f"torch.xpu.device_count() is {torch.xpu.device_count()}, {shown}"
