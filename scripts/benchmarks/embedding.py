"""The pinned host embedding against the device table, on two accelerators: memory, host memory, gather time.

    python scripts/benchmarks/embedding.py [--json FILE]

Stock vLLM 0.30 or later and the shim must be importable; NVIDIA GPUs. Starts one rank a device by itself. One shard of
a 248,320 x 5120 table in bfloat16 on each of two ranks, ids at random. Times are medians, in microseconds:

    single   the lookup of one rank, called on an idle device: ids of the whole vocabulary, zeros for the other's rows
    lookup   the same, one of many in a captured graph
    gather   ids of the rank's own shard alone, so that every row is read here; in a captured graph
    torch    the same by F.embedding
    layer    the whole forward, with the all-reduce, in a captured graph
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

VOCABULARY, HIDDEN, RANKS = 248_320, 5120, 2
TOKENS = (1, 8, 64, 512, 2048, 8192, 32768)
COPY_BYTES = 512 * 2**20
KINDS = ("single", "lookup", "gather", "torch", "layer")
#: What is to be reached.
MAX_HOST_OVERHEAD, MIN_COPY_SHARE, MAX_RATIO = 0.01, 0.92, 1.3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmark.py embedding", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured, of both ranks")
    options = parser.parse_args(arguments)
    if "RANK" in os.environ:
        return _rank(options.json)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), __file__]
    command += ["--json", str(options.json)] if options.json else []
    return subprocess.run(command, check=False).returncode


def _rank(path: Path | None) -> int:
    os.environ["VLLM_HOST_EMBED_TABLE"] = "1"
    os.environ.setdefault("VLLM_ALLREDUCE_USE_SYMM_MEM", "0")
    os.environ.setdefault("VLLM_ALLREDUCE_USE_FLASHINFER", "0")
    import torch

    from verl_xpu_shim.vllm import sentinel

    with sentinel.tensor_parallel("custom") as device:
        mine = _measure(device)
        ranks: list[Any] = [None] * RANKS
        torch.distributed.all_gather_object(ranks, mine)
    if mine["rank"] != 0:
        return 0
    verdicts = _judge(ranks)
    report = {
        "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "versions": {name: version(name) for name in ("torch", "vllm")},
        "table": {"vocabulary": VOCABULARY, "hidden": HIDDEN, "dtype": "bfloat16", "ranks": RANKS},
        "verdicts": verdicts,
        "ranks": ranks,
    }
    if path:
        path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    _show(report)
    return 0 if all(verdicts.values()) else 1


def _measure(device: Any) -> dict[str, Any]:
    import torch
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    def allocated() -> int:
        torch.accelerator.synchronize()
        return int(torch.cuda.memory_allocated(device))

    rss = _status_bytes("VmRSS")
    before = allocated()
    with device:
        host = VocabParallelEmbedding(VOCABULARY, HIDDEN, params_dtype=torch.bfloat16)
    host_cost, host_rss = allocated() - before, _status_bytes("VmRSS") - rss
    ours = op_registry_oot.pop("VocabParallelEmbedding")
    before = allocated()
    with device:
        stock = VocabParallelEmbedding(VOCABULARY, HIDDEN, params_dtype=torch.bfloat16)
    stock_cost = allocated() - before
    op_registry_oot["VocabParallelEmbedding"] = ours
    shard = host.weight.nbytes
    for start in range(0, len(stock.weight), 1 << 14):  # random rows, the same in both
        rows = torch.randn_like(stock.weight[start : start + (1 << 14)])
        stock.weight[start : start + (1 << 14)].copy_(rows)
        host.weight[start : start + (1 << 14)].copy_(rows)
    torch.accelerator.synchronize()
    return {
        "rank": int(os.environ["RANK"]),
        "device": torch.cuda.get_device_name(device),
        "class": type(host).__name__,
        "pinned": host.weight.is_pinned(),
        "shard_bytes": shard,
        "device_bytes_host_table": host_cost,
        "device_bytes_device_table": stock_cost,
        "host_mapping_bytes": _mapping_bytes(host.weight.data_ptr()),
        "host_rss_growth_bytes": host_rss,
        "copy_gb_s": _copy_rate(host.weight, device, COPY_BYTES),
        "tokens": {str(count): _times(host, stock, count, device) for count in TOKENS},
    }


def _times(host: Any, stock: Any, count: int, device: Any) -> dict[str, Any]:
    """Median times of a lookup of ``count`` random ids, and whether host and device table give the same bytes."""
    import torch
    import torch.nn.functional as F
    from vllm import _custom_ops as ops

    draw = torch.Generator(device=device).manual_seed(count)
    rotation = 8  # several id sets: one alone would measure the cache
    own = [torch.randint(len(stock.weight), (count,), device=device, generator=draw) for _ in range(rotation)]
    anywhere = [torch.randint(VOCABULARY, (count,), device=device, generator=draw) for _ in range(rotation)]
    same = all(torch.equal(host(each), stock(each)) for each in anywhere)
    times: dict[str, Any] = {"same_bytes": same}
    singles = []
    for name, table, layer in (("host", host._uva_weight, host), ("device", stock.weight, stock)):

        def gather(ids: Any, table: Any = table, rows: int = len(stock.weight)) -> Any:
            return ops.vocab_parallel_embedding(ids, table, 0, rows, 0, rows, rows)

        def lookup(ids: Any, table: Any = table, shard: Any = layer.shard_indices) -> Any:
            return ops.vocab_parallel_embedding(
                ids, table, shard.org_vocab_start_index, shard.org_vocab_end_index, shard.num_org_vocab_padding,
                shard.added_vocab_start_index, shard.added_vocab_end_index,
            )  # fmt: skip

        def plain(ids: Any, table: Any = table) -> Any:
            return F.embedding(ids, table)

        singles.append(lambda lookup=lookup: lookup(anywhere[0]))
        times[f"lookup_{name}"] = _median(_captured(lookup, anywhere, device), rotation)
        times[f"gather_{name}"] = _median(_captured(gather, own, device), rotation)
        times[f"torch_{name}"] = _median(_captured(plain, own, device), rotation)
        times[f"layer_{name}"] = _median(_captured(layer, anywhere, device), rotation)
    times["single_host"], times["single_device"] = _medians(singles, 1, repeats=301, idle=True)
    times["gather_gb_s"] = count * HIDDEN * 2 / times["gather_host"] / 1e3
    times["same_size_copy_gb_s"] = _copy_rate(host.weight, device, count * HIDDEN * 2)
    return times


def _captured(forward: Callable[[Any], Any], ids: list[Any], device: Any) -> Callable[[], None]:
    import torch
    from vllm.distributed.parallel_state import graph_capture

    graph = torch.cuda.CUDAGraph()
    with graph_capture(device=device) as context:
        for each in ids:
            forward(each)
        torch.accelerator.synchronize()
        with torch.cuda.graph(graph, stream=context.stream):
            kept = [forward(each) for each in ids]

    def replay(alive: Any = (ids, kept)) -> None:
        graph.replay()

    return replay


def _median(batch: Callable[[], Any], calls: int) -> float:
    """Median time of one of the ``calls`` in ``batch``, in microseconds."""
    return _medians([batch], calls)[0]


def _medians(batches: list[Callable[[], Any]], calls: int, repeats: int = 31, idle: bool = False) -> list[float]:
    """The same for several ``batches``, run in turn: the host's own noise meets all of them alike."""
    import torch

    times: list[list[float]] = [[] for _ in batches]
    for repeat in range(-3, repeats):
        for batch, measured in zip(batches, times, strict=True):
            if idle:
                torch.accelerator.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            batch()
            end.record()
            end.synchronize()
            if repeat >= 0:  # the first ones warm up
                measured.append(start.elapsed_time(end) * 1e3 / calls)
    return [statistics.median(each) for each in times]


def _copy_rate(weight: Any, device: Any, nbytes: int) -> float:
    """GB/s of copies of ``nbytes`` from the pinned table to the device, one after the other."""
    import torch

    source = weight.view(torch.uint8).flatten()[:nbytes]
    target = torch.empty_like(source, device=device)
    calls = 8
    time = _median(lambda: [target.copy_(source, non_blocking=True) for _ in range(calls)], calls)
    return nbytes / time / 1e3


def _status_bytes(key: str) -> int:
    line = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    return int(line[1]) * 1024 if line else 0


def _mapping_bytes(address: int) -> int:
    """Resident bytes of the mapping that holds ``address``."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    return 0


def _judge(ranks: list[dict[str, Any]]) -> dict[str, bool]:
    def every(test: Callable[[dict[str, Any]], bool]) -> bool:
        return all(test(rank) for rank in ranks)

    def freed(rank: dict[str, Any]) -> bool:
        return rank["device_bytes_device_table"] - rank["device_bytes_host_table"] == rank["shard_bytes"]

    def at(rank: dict[str, Any], wanted: Callable[[int], bool]) -> list[dict[str, Any]]:
        return [times for count, times in rank["tokens"].items() if wanted(int(count))]

    return {
        "same bytes": every(lambda rank: all(times["same_bytes"] for times in at(rank, lambda count: True))),
        "freed is the shard exactly": every(freed),
        "host overhead below 1 %": every(
            lambda rank: rank["host_mapping_bytes"] < rank["shard_bytes"] * (1 + MAX_HOST_OVERHEAD)
        ),
        "gather at 92 % of the copy rate from 2048 tokens": every(
            lambda rank: all(
                times["gather_gb_s"] >= MIN_COPY_SHARE * rank["copy_gb_s"] for times in at(rank, lambda n: n >= 2048)
            )
        ),
        "a single lookup at most 1.3x the device table up to 64 tokens": every(
            lambda rank: all(
                times["single_host"] <= MAX_RATIO * times["single_device"] for times in at(rank, lambda n: n <= 64)
            )
        ),
    }


def _show(report: dict[str, Any]) -> None:
    for rank in report["ranks"]:
        freed = rank["device_bytes_device_table"] - rank["device_bytes_host_table"]
        overhead = rank["host_mapping_bytes"] / rank["shard_bytes"] - 1
        print(f"rank {rank['rank']} {rank['device']}: shard {rank['shard_bytes']} bytes, freed {freed}; ", end="")
        print(f"host {rank['host_mapping_bytes']} bytes ({overhead:+.4%}); copy {rank['copy_gb_s']:.1f} GB/s")
        heads = "".join(f"{kind:>10} host/device" for kind in KINDS)
        print(f"tokens{heads}   gather GB/s, of the copy rate, of a copy of this size")
        for count, times in rank["tokens"].items():
            pairs = "".join(f"{times[f'{kind}_host']:12.1f} {times[f'{kind}_device']:9.1f}" for kind in KINDS)
            rate = times["gather_gb_s"]
            shares = f"{rate / rank['copy_gb_s']:9.1%}{rate / times['same_size_copy_gb_s']:9.1%}"
            print(f"{count:>6}{pairs}{rate:11.2f}{shares}")
    for text, reached in report["verdicts"].items():
        print(f"{'reached' if reached else 'MISSED '} {text}")


if __name__ == "__main__":
    sys.exit(main())
