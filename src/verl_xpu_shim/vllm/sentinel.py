"""The arms of the replay sentinel on the devices; :mod:`verl_xpu_shim.probes.replay_sentinel` says what they prove."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from typing import Final

import torch

import xpu_sitecustomize
from verl_xpu_shim.probes.replay_sentinel import HIDDEN
from verl_xpu_shim.probes.replay_sentinel import IDS
from verl_xpu_shim.probes.replay_sentinel import NOWHERE
from verl_xpu_shim.probes.replay_sentinel import RANKS
from verl_xpu_shim.probes.replay_sentinel import SENTINELS
from verl_xpu_shim.probes.replay_sentinel import VOCABULARY
from verl_xpu_shim.probes.replay_sentinel import Report
from verl_xpu_shim.probes.replay_sentinel import Void
from verl_xpu_shim.probes.replay_sentinel import sha256
from verl_xpu_shim.probes.replay_sentinel import table_bits

#: The all-reduce paths of vLLM's communicator before NCCL, in its order: name, attribute, "do you take this tensor?".
_PATHS: Final = (
    ("quick", "qr_comm", "should_quick_allreduce"),
    ("flashinfer-pcie", "fi_pcie_ipc_ar_comm", "should_use"),
    ("flashinfer", "fi_ar_comm", "should_use_fi_ar"),
    ("custom", "ca_comm", "should_custom_ar"),
    ("symm_mem", "symm_mem_comm", "should_use_symm_mem"),
)

Forward = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Captured:
    """A graph, and the tensors that must live as long as it does: it reads ``ids`` on every replay."""

    graph: Any
    ids: torch.Tensor
    output: torch.Tensor

    def replay(self) -> str:
        self.graph.replay()
        return digest(self.output)


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 of the bytes of ``tensor``, read after the device has finished."""
    torch.accelerator.synchronize()
    return sha256(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())


def run(report: Report, digests: dict[str, str], facts: dict[str, Any], path: str, cycles: int) -> None:
    """Run every arm on this rank.

    Raises:
        Void: this machine, or the all-reduce path in force, doesn't allow a judgement.
    """
    largest, lowest = torch.finfo(torch.bfloat16).max, torch.finfo(torch.bfloat16).min
    import vllm

    bits = torch.tensor([largest, lowest], dtype=torch.bfloat16).view(torch.int16).tolist()
    if [each & 0xFFFF for each in bits] != list(SENTINELS.values()):
        raise Void(f"torch.finfo(bfloat16) has other bits than {SENTINELS}: {bits}")
    if torch.cuda.device_count() < RANKS:  # a ROCm build counts its devices here, too
        raise Void(f"{RANKS} devices that capture CUDA or HIP graphs are needed, on one machine")
    with tensor_parallel(path) as device:
        layer = build(device)
        facts |= {"torch": torch.__version__, "vllm": vllm.__version__, "device": torch.cuda.get_device_name(device)}
        facts["all_reduce"] = _path_in_force(device)
        if facts["all_reduce"] != path:
            raise Void(f"the all-reduce path in force is {facts['all_reduce']}, not {path}")
        _Arms(report, digests, layer, device).run(cycles)


def build(device: torch.device) -> Any:
    """The layer under test, its shard loaded by its own weight loader."""
    from vllm.model_executor.layers.vocab_parallel_embedding import PinnedHostVocabParallelEmbedding

    with device:
        layer = PinnedHostVocabParallelEmbedding(VOCABULARY, HIDDEN, params_dtype=torch.bfloat16)
    table = torch.from_numpy(table_bits().view("<i2")).view(torch.bfloat16)
    layer.weight_loader(layer.weight, table)
    return layer


def capture(forward: Forward, ids: torch.Tensor, device: torch.device) -> Captured:
    """Capture ``forward(ids)`` under vLLM's ``graph_capture``; hands ``ids`` back, to be kept by the caller."""
    from vllm.distributed.parallel_state import graph_capture

    graph = torch.cuda.CUDAGraph()
    with graph_capture(device=device) as context:
        forward(ids)
        torch.accelerator.synchronize()
        with torch.cuda.graph(graph, stream=context.stream):
            output = forward(ids)
    return Captured(graph, ids, output)


@contextmanager
def tensor_parallel(path: str) -> Iterator[torch.device]:
    """The process groups of vLLM over the ranks; yields this rank's device."""
    xpu_sitecustomize.install()
    from vllm.config import VllmConfig
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.platforms import current_platform

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.accelerator.set_device_index(local_rank)
    with set_current_vllm_config(VllmConfig()):
        parallel_state.set_custom_all_reduce(path == "custom")
        parallel_state.init_distributed_environment(
            RANKS, int(os.environ["RANK"]), "env://", local_rank, current_platform.dist_backend
        )
        parallel_state.ensure_model_parallel_initialized(RANKS, 1)
        try:
            yield torch.device(current_platform.device_type, local_rank)
        finally:
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()


def _path_in_force(device: torch.device) -> str:
    """The path that the communicator takes for a tensor like the output."""
    from vllm.distributed.parallel_state import get_tp_group

    communicator = get_tp_group().device_communicator
    tensor = torch.zeros(len(IDS), HIDDEN, dtype=torch.bfloat16, device=device)
    for name, attribute, takes in _PATHS:
        each = getattr(communicator, attribute, None)
        if each is not None and not getattr(each, "disabled", False) and getattr(each, takes)(tensor):
            return name
    own = getattr(communicator, "pynccl_comm", None)
    if own is not None and not own.disabled:
        return "nccl"
    return str(torch.distributed.get_backend(get_tp_group().device_group))  # what PyTorch reduces with


class _Arms:
    def __init__(self, report: Report, digests: dict[str, str], layer: Any, device: torch.device) -> None:
        self.report: Final = report
        self.digests: Final = digests
        self.layer: Final = layer
        self.device: Final = device
        self.ids: Final = torch.tensor(IDS, device=device)
        self.ids_bytes: Final = digest(self.ids)
        self.partial: Captured | None = None

    def run(self, cycles: int) -> None:
        compare, wanted = self.report.compare, self.digests
        compare("E", digest(self.layer(self.ids)), wanted["base"])
        compiled: Forward = torch.compile(self.layer, fullgraph=True, dynamic=False)
        compare("C", digest(compiled(self.ids)), wanted["base"])
        captured = capture(compiled, self.ids, self.device)
        compare("G", captured.replay(), wanted["base"])
        self._capture_partial()
        self.write("mutated", "M")
        compare("M", captured.replay(), wanted["mutated"])
        compare("M/compiled", digest(compiled(self.ids)), wanted["mutated"])
        self.write("base", "R")
        compare("R", captured.replay(), wanted["base"])
        compare("I/R", digest(captured.ids), self.ids_bytes)
        for cycle in range(1, cycles + 1):
            for state in ("mutated", "base"):
                arm = f"X{cycle}/{state}"
                self.write(state, arm)
                self._reduce()
                compare(arm, captured.replay(), wanted[state])
        compare("I/X", digest(captured.ids), self.ids_bytes)
        self._positive_control(captured)
        self._failing_control()

    def write(self, state: str, arm: str) -> None:
        """Rewrite the sentinel rows on the host, each on the rank that has it, and look at the partial by itself."""
        from vllm.distributed.parallel_state import get_tp_group

        torch.accelerator.synchronize()
        shard = self.layer.shard_indices
        bits = torch.from_numpy(table_bits(mutated=state == "mutated").view("<i2")).view(torch.bfloat16)
        for row in SENTINELS:
            if shard.org_vocab_start_index <= row < shard.org_vocab_end_index:
                self.layer.weight.data[row - shard.org_vocab_start_index] = bits[row]
        torch.distributed.barrier(group=get_tp_group().cpu_group)
        if self.partial is not None:
            self.report.compare(f"P/{arm}", self.partial.replay(), self.digests[f"{state}/rank{self.report.rank}"])

    def _reduce(self) -> None:
        """An eager all-reduce between the write and the replay."""
        from vllm.distributed import tensor_model_parallel_all_reduce

        ones = torch.ones(len(IDS), HIDDEN, dtype=torch.bfloat16, device=self.device)
        total = tensor_model_parallel_all_reduce(ones)
        if not torch.all(total == RANKS):
            raise Void("the all-reduce itself gives a wrong sum")

    def _capture_partial(self) -> None:
        """The lookup before the all-reduce, in a graph of its own: tells a stale table from a faulty all-reduce."""
        partial = copy.copy(self.layer)
        partial.reduce_results = False
        try:
            self.partial = capture(torch.compile(partial, fullgraph=True, dynamic=False), self.ids, self.device)
        except Exception as error:  # only these arms are void then, and said to be
            return self.report.void("P", f"its set-up failed: {type(error).__name__}: {error}")
        return self.report.compare("P/G", self.partial.replay(), self.digests[f"base/rank{self.report.rank}"])

    def _positive_control(self, captured: Captured) -> None:
        """The graph does read its static ids: ids that no rank has give zeros."""
        captured.ids.fill_(NOWHERE)
        self.report.compare("Z", captured.replay(), self.digests["zeros"])
        captured.ids.copy_(torch.tensor(IDS))
        self.report.compare("Z/restored", captured.replay(), self.digests["base"])

    def _failing_control(self) -> None:
        """Over a device copy, a write on the host must go unseen: else M can't tell a live view from a copy."""
        control = copy.copy(self.layer)
        control._uva_weight = self.layer.weight.to(self.device, copy=True)
        captured = capture(torch.compile(control, fullgraph=True, dynamic=False), self.ids, self.device)
        self.report.compare("K/G", captured.replay(), self.digests["base"])
        self.write("mutated", "K")
        self.report.compare("K", captured.replay(), self.digests["base"])
        self.write("base", "K/restored")
