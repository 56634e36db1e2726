"""``verl-xpu-shim doctor``: what verl would find on this machine, in plain sentences, and what to do about it.

Every check is a function that yields findings. What a broken driver could hang or abort runs in a child interpreter.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import Final
from typing import NamedTuple

import importlib_metadata

from verl_xpu_shim.topology import numa
from verl_xpu_shim.topology import sysman

LOADER: Final = "libze_loader.so.1"
NAMES: Final = ("torch", "verl", "vllm", "ray", "pyzes", "ittapi", "dpctl")
VARIABLES: Final = (
    "ZE_AFFINITY_MASK",
    "ONEAPI_DEVICE_SELECTOR",
    "ZE_FLAT_DEVICE_HIERARCHY",
    "ZES_ENABLE_SYSMAN",
    "CUDA_VISIBLE_DEVICES",
    "RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK",
    "RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR",
    "VERL_PLATFORM",
    "VERL_XPU_SHIM",
    "VERL_XPU_SHIM_DISABLE",
)
"""What decides on devices, shown where set."""

CHILD_TIMEOUT: Final = 120.0
"""Seconds: the first initialisation of a driver takes a while."""

_DEVICES: Final = """
import json, torch
devices = []
for index in range(torch.xpu.device_count()) if torch.version.xpu else ():
    device = torch.xpu.get_device_properties(index)
    devices.append({"name": device.name, "memory": device.total_memory, "driver": device.driver_version})
print(json.dumps([torch.version.xpu, devices]))
"""


class Finding(NamedTuple):
    """One sentence about one thing."""

    topic: str
    ok: bool
    text: str


def main(ray: str | None = None, as_json: bool = False) -> int:
    """Print the report and return the exit status: 1 where something is wrong."""
    report = collect(ray)
    print(json.dumps(report, indent=2) if as_json else render(report))
    return int(not report["ok"])


def collect(ray: str | None = None) -> dict[str, Any]:
    """Return everything that was found: ``ok``, ``findings``, ``versions``, ``variables`` and ``devices``.

    Args:
        ray: address of a Ray cluster; one task is run on each of its nodes.
    """
    versions = {name: _version(name) for name in NAMES}
    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    hardware = list(_hardware())
    findings = list(_on_the_bus(hardware))
    xpu, devices = None, []
    if versions["torch"]:
        try:
            xpu, devices = _in_child(_DEVICES)
        except RuntimeError as error:
            findings.append(Finding("torch", False, f"torch doesn't start: {error}"))
        else:
            findings += _torch(versions["torch"], xpu, devices, hardware)
    else:
        findings.append(Finding("torch", False, "torch isn't installed."))
    findings += [*_libraries(versions, xpu), *_masks(variables), *_topology(devices), *_plugins()]
    if xpu and versions["ray"]:
        findings += _ray_here(devices, versions["dpctl"])
    if ray:
        from verl_xpu_shim.probes.ray_nodes import nodes

        findings += [Finding("Ray cluster", ok, text) for ok, text in nodes(ray)]
    return {
        "ok": all(finding.ok for finding in findings),
        "findings": [finding._asdict() for finding in findings],
        "versions": versions,
        "variables": variables,
        "xpu_build": xpu,
        "devices": devices,
        "hardware": hardware,
    }


def render(report: dict[str, Any]) -> str:
    """The report as text for a person, what is wrong marked and repeated as a count at the end."""
    lines, topic = [], None
    for finding in report["findings"]:
        if finding["topic"] != topic:
            topic = finding["topic"]
            lines.append(f"\n{topic}")
        lines.append(f"  {'  ' if finding['ok'] else '! '}{finding['text']}")
    wrong = sum(not finding["ok"] for finding in report["findings"])
    lines.append(f"\n{wrong} thing(s) to put right, marked with !" if wrong else "\nNothing wrong was found.")
    return "\n".join(lines).lstrip("\n")


def _on_the_bus(hardware: list[dict[str, Any]]) -> Iterator[Finding]:
    topic = "Hardware"
    for card in hardware:
        yield Finding(topic, card["kernel_driver"] is not None, _describe(card))
    if not hardware:
        yield Finding(topic, True, "There is no Intel GPU on the PCI bus.")
        return
    nodes = sorted(Path("/dev/dri").glob("renderD*"))
    closed = [str(node) for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if not nodes:
        advice = "the kernel driver isn't loaded, or the container was started without --device /dev/dri"
        yield Finding(topic, False, f"There is no /dev/dri/renderD*: {advice}.")
    if closed:
        advice = "add the user to the group that owns it, often 'render'"
        yield Finding(topic, False, f"{', '.join(closed)} may not be opened: {advice}.")


def _torch(
    version: str, xpu: str | None, devices: list[dict[str, Any]], hardware: list[dict[str, Any]]
) -> Iterator[Finding]:
    topic = "torch"
    if not xpu:
        wanted = any(not card["integrated"] for card in hardware)
        advice = " To use the Intel GPUs, install the XPU build (PyTorch's notes: Getting Started on Intel GPU)."
        text = f"torch {version} isn't an XPU build, so the shim leaves this environment as it is."
        yield Finding(topic, not wanted, text + advice * wanted)
        return
    yield Finding(topic, True, f"torch {version} is an XPU build ({xpu}).")
    for index, each in enumerate(devices):
        memory = f"{each['memory'] / 2**30:.0f} GiB"
        yield Finding(topic, True, f"xpu:{index} is {each['name']}, {memory}, driver {each['driver']}.")
    if not devices:
        advice = "is Intel's Level Zero driver installed (libze-intel-gpu1)? See the hardware above, the masks below"
        yield Finding(topic, False, f"torch.xpu sees no device: {advice}.")


def _libraries(versions: dict[str, str | None], xpu: str | None) -> Iterator[Finding]:
    topic = "Libraries"
    try:
        loader = ctypes.CDLL(LOADER)
    except OSError:
        yield Finding(
            topic, not xpu, f"The Level Zero loader ({LOADER}) isn't installed{': install libze1' * bool(xpu)}."
        )
    else:
        name = Path(_mapped(LOADER)).resolve().name
        old = "" if hasattr(loader, "zesInit") else ": it has no zesInit, so pyzes can't use it; 1.20.6 or newer does"
        yield Finding(topic, not (xpu and old), f"The Level Zero loader is {name}{old}.")
    what = {
        "verl": "what is patched",
        "vllm": "for rollouts",
        "ray": "starts verl's workers",
        "pyzes": "finds NUMA nodes; pip install 'pyzes>=0.1.2'",
        "ittapi": "marks ranges for VTune; pip install ittapi",
        "dpctl": "lets Ray count Intel GPUs",
    }
    for name, use in what.items():
        version = versions[name]
        yield Finding(topic, True, f"{name} {version}." if version else f"{name} isn't installed ({use}).")


def _masks(variables: dict[str, str]) -> Iterator[Finding]:
    topic = "Variables"
    mask, selector = variables.get("ZE_AFFINITY_MASK"), variables.get("ONEAPI_DEVICE_SELECTOR")
    for name, value in variables.items():
        if name not in ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "ZES_ENABLE_SYSMAN"):
            yield Finding(topic, True, f"{name}={value}")
    if mask is None and selector is None:
        yield Finding(topic, True, "Neither ZE_AFFINITY_MASK nor ONEAPI_DEVICE_SELECTOR is set: all devices are seen.")
    if mask is not None:
        try:
            sysman.parse_mask(mask)
            yield Finding(topic, True, f"ZE_AFFINITY_MASK={mask} chooses the devices, in their own order; it wins.")
        except ValueError as error:
            text = "ZE_AFFINITY_MASK is set but empty, which Ray takes for no device: unset it." if not mask else error
            yield Finding(topic, False, str(text))
    if selector is not None:
        what = "is applied to what ZE_AFFINITY_MASK lets through" if mask is not None else "chooses the devices"
        yield Finding(
            topic, False, f"ONEAPI_DEVICE_SELECTOR={selector} {what}; verl's workers refuse it, use ZE_AFFINITY_MASK."
        )
    if "ZES_ENABLE_SYSMAN" in variables:
        value = variables["ZES_ENABLE_SYSMAN"]
        text = f"ZES_ENABLE_SYSMAN={value}: unset it, it makes zesInit fail where zeInit came first."
        yield Finding(topic, value != "1", text)


def _topology(devices: list[dict[str, Any]]) -> Iterator[Finding]:
    topic = "NUMA"
    allowed = os.sched_getaffinity(0)
    yield Finding(topic, True, f"This process may use the CPUs {numa.format_cpulist(allowed)}.")
    unpinned: dict[str, list[str]] = {}
    for ordinal, device in enumerate(devices):
        try:
            place = numa.place(ordinal, numa.SYSFS)
        except numa.NotPinned as error:
            unpinned.setdefault(str(error), []).append(f"xpu:{ordinal}")
            continue
        cpus = numa.format_cpulist(place.cpus)
        device |= {"address": place.gpu.address, "tile": place.gpu.tile, "node": place.node, "cpus": cpus}
        tile = "" if place.gpu.tile is None else f", tile {place.gpu.tile},"
        yield Finding(topic, True, f"xpu:{ordinal} ({place.gpu.address}{tile}) is on node {place.node}: CPUs {cpus}.")
    for reason, names in unpinned.items():
        yield Finding(topic, True, f"Workers on {', '.join(names)} won't be pinned: {reason}.")


def _ray_here(devices: list[dict[str, Any]], dpctl: str | None) -> Iterator[Finding]:
    """What a Ray started from this environment would make of the devices."""
    topic = "Ray"
    try:
        variable, count = _in_child(
            "import json; from ray._private.accelerators import get_accelerator_manager_for_resource as manager;"
            "gpu = manager('GPU');"
            "print(json.dumps([gpu.get_visible_accelerator_ids_env_var(), gpu.get_current_node_num_accelerators()]))"
        )
    except RuntimeError as error:
        yield Finding(topic, False, f"Ray doesn't start: {error}")
        return
    if count:
        yield Finding(topic, count == len(devices), f"Ray counts {count} GPU(s) here, torch {len(devices)}.")
        yield Finding(topic, True, f"Ray would narrow {variable} for each worker; verl's keep all devices in sight.")
    elif devices:
        why = "dpctl isn't installed" if dpctl is None else "dpctl finds none"
        text = f"Ray counts no GPU here ({why}): say how many, +ray_kwargs.ray_init.num_gpus={len(devices)}"
        yield Finding(topic, False, f"{text}, or 'ray start --num-gpus={len(devices)}'.")


def _plugins() -> Iterator[Finding]:
    for point in importlib_metadata.entry_points(group="verl.plugins"):
        package = point.dist.name if point.dist else point.value
        yield Finding("Plugins", True, f"{package} ({point.name}) plugs into verl too; nothing is patched twice.")


def _hardware() -> Iterator[dict[str, Any]]:
    """The Intel display controllers and accelerators on the PCI bus, as the kernel lists them."""
    for device in sorted((numa.SYSFS / "bus/pci/devices").glob("*")):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == "0x8086" and kind[:4] in ("0x03", "0x12"):
            link = device / "driver"
            yield {
                "address": device.name,
                "id": (device / "device").read_text().strip(),
                "kernel_driver": link.resolve().name if link.exists() else None,
                "integrated": device.name == "0000:00:02.0",
            }


def _describe(card: dict[str, Any]) -> str:
    kind = "an integrated GPU" if card["integrated"] else "a GPU"
    return f"{card['address']} is {kind} of Intel's ({card['id']}), kernel driver {card['kernel_driver'] or 'missing'}."


def _version(name: str) -> str | None:
    try:
        return importlib_metadata.version(name)
    except importlib_metadata.PackageNotFoundError:
        return "of unknown version" if importlib.util.find_spec(name) else None


def _mapped(name: str) -> str:
    """The file that a library of this process was loaded from."""
    with open("/proc/self/maps") as maps:
        return next((line.split()[-1] for line in maps if f"/{name}" in line), name)


def _in_child(code: str) -> Any:
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=CHILD_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer within {CHILD_TIMEOUT:.0f} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])
