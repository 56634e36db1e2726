"""``verl-xpu-shim probe all-reduce``: the collectives verl leans on, one process a device, with known results.

Says of ``ReduceOp.AVG`` what oneCCL makes of it by itself, and what comes of it with the shim.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from typing import Final

TIMEOUT: Final = 120.0
"""Seconds until a hanging collective is given up."""

SIZES: Final = (None, 1, 2, 4, 28, 33, 1 << 10, 1 << 20)
"""Elements; None is a 0-dim tensor. Up to 33 oneCCL divided twice before oneAPI 2026.0 (intel/torch-xpu-ops#3020)."""

HANGS: Final = (
    "the ranks don't get through. oneCCL wants every device of the group visible in each process (unset a "
    "ZE_AFFINITY_MASK that names one) and, in a container, SYS_PTRACE or an unconfined seccomp profile for "
    "its exchange of memory handles (uxlfoundation/oneCCL#217)"
)


def main(arguments: Sequence[str] = ()) -> int:
    """Run the probe and return the exit status: 1 where a sum, or an average with the shim, is wrong or missing."""
    parser = argparse.ArgumentParser(prog="verl-xpu-shim probe all-reduce", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--ranks", type=int, help="how many; all devices by default")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help=f"seconds ({TIMEOUT:.0f})")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        print(json.dumps(list(_rank(options.rank, options.ranks, options.timeout))))
        return 0
    report = probe(options.ranks, options.timeout)
    print(json.dumps(report, indent=2) if options.json else _render(report))
    return int(report["error"] is not None or not all(check["ok"] for check in report["checks"] if check["matters"]))


def probe(ranks: int | None, timeout: float) -> dict[str, Any]:
    """Run ``ranks`` processes; return ``ranks``, ``error`` and ``checks`` as rank 0 saw them."""
    try:
        import torch
    except ImportError:
        return {"ranks": 0, "checks": [], "error": "torch isn't installed"}
    count = torch.xpu.device_count()
    ranks = ranks or count
    report: dict[str, Any] = {"ranks": ranks, "checks": [], "error": None}
    if not torch.version.xpu:
        report["error"] = f"torch {torch.__version__} isn't an XPU build"
    elif not count:
        report["error"] = "torch.xpu sees no device"
    elif ranks > count:
        report["error"] = f"{ranks} ranks need as many devices, torch.xpu sees {count}"
    else:
        report |= _run(ranks, timeout)
    return report


def _run(ranks: int, timeout: float) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", __name__, "--ranks", str(ranks), "--timeout", str(timeout), "--rank"]
    children = [
        subprocess.Popen(
            [*command, str(rank)],
            env=env | {"RANK": str(rank)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]
    deadline = time.monotonic() + timeout
    said: list[tuple[str, str]] = []
    try:
        said = [child.communicate(timeout=max(deadline - time.monotonic(), 0.1)) for child in children]
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout:.0f} s: {HANGS}"}
    finally:
        for child in children:
            child.kill()
            child.wait()
    for rank, (child, (_, errors)) in enumerate(zip(children, said, strict=True)):
        if child.returncode:
            return {"error": f"rank {rank}: {(errors.strip().splitlines() or ['no message'])[-1]}"}
    return {"checks": json.loads(said[0][0].splitlines()[-1])}


def _rank(rank: int, ranks: int, timeout: float) -> Iterator[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    from verl_xpu_shim import policy

    torch.xpu.set_device(rank)
    dist.init_process_group("cpu:gloo,xpu:xccl", timeout=timedelta(seconds=timeout))
    yield _check("SUM", dist.ReduceOp.SUM, ranks * (ranks + 1) / 2, matters=True)
    yield _check("AVG by oneCCL itself", dist.ReduceOp.AVG, (ranks + 1) / 2, matters=False)
    policy.apply("reduce_avg", torch.distributed.distributed_c10d)
    yield _check("AVG with the shim", dist.ReduceOp.AVG, (ranks + 1) / 2, matters=True)
    dist.barrier()
    dist.destroy_process_group()


def _check(name: str, op: Any, expected: float, *, matters: bool) -> dict[str, Any]:
    """All-reduce ``rank + 1`` in every size and two types, at once and asynchronously; ``expected`` is the result."""
    import torch
    from torch.distributed import distributed_c10d as dist  # the module that is patched, not who re-exports from it

    wrong: list[str] = []
    value = float(dist.get_rank() + 1)
    for dtype in (torch.float32, torch.bfloat16):
        for size in SIZES:
            for later in (False, True):
                tensor = torch.full((size,) if size else (), value, dtype=dtype, device="xpu")
                try:
                    work = dist.all_reduce(tensor, op, async_op=later)
                    if work is not None:
                        work.wait()
                except RuntimeError as error:
                    return {"name": name, "ok": False, "matters": matters, "found": str(error).splitlines()[0]}
                if not bool((tensor.float().cpu() == expected).all()):
                    shape = f"{size} x {dtype}" if size else f"a scalar {dtype}"
                    wrong.append(f"{shape}{' async' * later}: {float(tensor.float().flatten()[0])}, not {expected}")
    return {"name": name, "ok": not wrong, "matters": matters, "found": "; ".join(wrong[:3]) or None}


def _render(report: dict[str, Any]) -> str:
    lines = [f"{check['name']}: {'right' if check['ok'] else check['found']}" for check in report["checks"]]
    if report["error"]:
        return f"The probe failed: {report['error']}."
    return "\n".join([f"{report['ranks']} rank(s), one device each", *lines])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
