"""``PinnedHostVocabParallelEmbedding``: vLLM's embedding layer over a table in pinned host memory.

A decode step reads a few rows of a table that takes gigabytes of device memory. Here the table is host memory that the
device maps: the lookup is the stock one, over a view, so compiled and captured graphs read the live table, and the same
operations in the same order give the same bytes.

This file is traced by torch.compile, and vLLM's compile cache hashes what is traced: it must stay a real file on disk.
"""

from __future__ import annotations

from typing import Any
from typing import Final

import torch
import torch.nn.functional as F
from torch.nn.parameter import Parameter
from vllm import _custom_ops as ops
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.layers.vocab_parallel_embedding import get_masked_input_and_mask
from vllm.model_executor.utils import set_weight_attrs
from vllm.platforms import current_platform

from verl_xpu_shim.vllm.host_memory import HostTable
from verl_xpu_shim.vllm.host_memory import allocate

#: vLLM 0.30 masks, shifts and gathers in one kernel on CUDA; ids of other ranks then cost no read over the host link.
_FUSED: Final = current_platform.is_cuda() and hasattr(ops, "vocab_parallel_embedding")


class HostTableMethod(UnquantizedEmbeddingMethod):  # type: ignore[misc]  # vLLM is the user's own, and untyped here
    """Creates a layer's weight in host memory, and keeps it there."""

    #: vLLM 0.30 and later then leave the weight where it is while they process it.
    requires_device_loading = False

    def create_weights(
        self,
        layer: PinnedHostVocabParallelEmbedding,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        table = allocate((sum(output_partition_sizes), input_size_per_partition), params_dtype)
        layer.adopt(table)
        weight = Parameter(table.tensor, requires_grad=False)
        set_weight_attrs(weight, {"input_dim": 1, "output_dim": 0, **extra_weight_attrs})
        layer.register_parameter("weight", weight)

    def process_weights_after_loading(self, layer: PinnedHostVocabParallelEmbedding) -> None:
        layer.rebind()

    def embedding(self, layer: PinnedHostVocabParallelEmbedding, input_: torch.Tensor) -> torch.Tensor:
        return F.embedding(input_, layer._lookup_weight(input_))

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        raise RuntimeError(
            "This model uses its token-embedding table as the output head, which would read the whole table over the "
            "host link at every step, and VLLM_HOST_EMBED_TABLE=1 put it there. Unset the variable for this model."
        )


class PinnedHostVocabParallelEmbedding(VocabParallelEmbedding):  # type: ignore[misc]
    """``VocabParallelEmbedding`` whose shard ``[rows, hidden]`` is pinned host memory; takes the same arguments.

    ``weight`` is a CPU parameter; ``accelerator_weight_view`` the same bytes as the device sees them (None on a CPU
    platform); ``_uva_weight`` what the lookup reads. None of the latter is a parameter or a buffer: level-2 sleep saves
    and restores buffers, and would copy the table and roll its weights back. A quantised table stays on the device.

    Raises:
        RuntimeError: pinned memory, or a live view of it, can't be had.
    """

    #: Why this table stays on the device; None: it doesn't.
    stays: str | None = None
    #: The table in host memory, while there is one.
    host_table: HostTable | None = None
    accelerator_weight_view: torch.Tensor | None = None
    _uva_weight: torch.Tensor | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        # The constructor has no other seam between the choice of the method and its `create_weights`.
        if name == "quant_method" and self.stays is None and type(value) is UnquantizedEmbeddingMethod:
            value = HostTableMethod()
        super().__setattr__(name, value)

    def adopt(self, table: HostTable) -> None:
        """Look rows up in ``table`` from now on."""
        self.host_table = table
        self.accelerator_weight_view = table.view
        self._uva_weight = table.tensor if table.view is None else table.view

    @torch.no_grad()
    def rebind(self) -> None:
        """Bring the weight back into the table, at the address that captured graphs read, and check the view.

        Whoever assigned to ``weight.data`` (``device_loading_context`` of vLLM 0.24 does) left the lookup behind.

        Raises:
            RuntimeError: the device's view of the table isn't live, or the weight has another shape.
        """
        assert self.host_table is not None
        table = self.host_table.tensor
        if self.weight.data_ptr() != table.data_ptr():
            self._wait_for_lookups()
            table.copy_(self.weight)
            self.weight.data = table
        self.host_table.check_live()

    @torch.no_grad()
    def move_to_device(self, device: torch.device, reason: str) -> None:
        """Make this a stock layer again, for ``reason``. The parameter stays the same object: who shares it follows."""
        self.weight.data = self.weight.to(device, copy=True)
        self.stays = reason
        self.host_table = self.accelerator_weight_view = self._uva_weight = None
        self.quant_method = UnquantizedEmbeddingMethod()

    def weight_loader(self, param: Parameter, loaded_weight: torch.Tensor) -> None:
        if self.host_table is not None:
            self._wait_for_lookups()
        super().weight_loader(param, loaded_weight)

    def _wait_for_lookups(self) -> None:
        """A host write isn't ordered after kernels still queued on the device, which would read torn rows."""
        if self.accelerator_weight_view is not None:
            torch.accelerator.synchronize()

    def _lookup_weight(self, ids: torch.Tensor) -> torch.Tensor:
        table = self._uva_weight
        weight: torch.Tensor = self.weight
        return table if table is not None and table.device.type == ids.device.type else weight

    def _own_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows that this rank has, zeros for the others; in one kernel where vLLM has it."""
        weight, shard = self._lookup_weight(ids), self.shard_indices
        bounds = (
            shard.org_vocab_start_index,
            shard.org_vocab_end_index,
            shard.num_org_vocab_padding,
            shard.added_vocab_start_index,
            shard.added_vocab_end_index,
        )
        if _FUSED and weight.is_cuda:
            rows: torch.Tensor = ops.vocab_parallel_embedding(ids.reshape(-1), weight, *bounds)
            return rows.view(*ids.shape, -1)
        inside, outside = get_masked_input_and_mask(ids, *bounds)
        rows = F.embedding(inside.long(), weight)
        return rows.masked_fill_(outside.unsqueeze(-1), 0)

    def forward(self, input_: torch.Tensor) -> Any:
        """Return ``[*input_.shape, hidden]``; rows of ids that no rank has are zero, also with one rank."""
        if self.host_table is None:
            return super().forward(input_)
        rows = self._own_rows(input_)
        if self.tp_size == 1 or not getattr(self, "reduce_results", True):  # reduce_results: vLLM 0.33
            return rows
        group = getattr(self, "parallel_group", None)  # vLLM 0.30
        return tensor_model_parallel_all_reduce(rows) if group is None else group.all_reduce(rows)
