"""One of two ranks over gloo: prints the digests of its outputs as one line of JSON. Run by test_processes.py."""

from __future__ import annotations

import json
import os

import cpu as cpu
import torch
from vllm.config import VllmConfig
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from verl_xpu_shim.probes import replay_sentinel as sentinel

rank = int(os.environ["RANK"])
ids = torch.tensor(sentinel.IDS)


def digest(tensor: torch.Tensor) -> str:
    return sentinel.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes())


with set_current_vllm_config(VllmConfig()):
    parallel_state.init_distributed_environment(2, rank, "env://", rank, "gloo")
    parallel_state.ensure_model_parallel_initialized(2, 1)
    layer = VocabParallelEmbedding(sentinel.VOCABULARY, sentinel.HIDDEN, params_dtype=torch.bfloat16)
    layer.weight_loader(layer.weight, torch.from_numpy(sentinel.table_bits().view("<i2")).view(torch.bfloat16))
    compiled = torch.compile(layer, fullgraph=True, dynamic=False)
    digests = {"class": type(layer).__name__, "rows": len(layer.weight)}
    digests |= {"eager": digest(layer(ids)), "compiled": digest(compiled(ids))}
    outside = torch.full_like(ids, sentinel.NOWHERE)
    digests |= {"outside": digest(layer(outside)), "outside compiled": digest(compiled(outside))}
    if hasattr(layer, "host_table"):
        layer.reduce_results = False
        digests["partial"] = digest(layer(ids))
        layer.reduce_results = True
    bits = torch.from_numpy(sentinel.table_bits(mutated=True).view("<i2")).view(torch.bfloat16)
    layer.weight_loader(layer.weight, bits)
    torch.distributed.barrier()
    digests |= {"mutated": digest(layer(ids)), "mutated compiled": digest(compiled(ids))}
    print(json.dumps(digests))
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()
