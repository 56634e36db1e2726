"""verl's FSDP checkpoint manager, from torchrun: `save` or `load` FOLDER STRATEGY FIRST_DEVICE; a sum is printed."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig
from transformers import LlamaForCausalLM
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.distributed import initialize_global_process_group


def main() -> None:
    action, folder, strategy, first = sys.argv[1:]
    os.environ["LOCAL_RANK"] = str(int(os.environ["LOCAL_RANK"]) + int(first))
    initialize_global_process_group(60)
    torch.manual_seed(1 if action == "save" else 2)
    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=64
    )
    model = LlamaForCausalLM(config).to("xpu")
    mesh = init_device_mesh("xpu", (dist.get_world_size(),))
    if strategy == "fsdp":
        model = FullyShardedDataParallel(
            model, use_orig_params=False, device_id=torch.xpu.current_device(), device_mesh=mesh
        )
    else:
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)

    def step() -> None:
        model(input_ids=torch.ones(1, 4, dtype=torch.long, device="xpu")).logits.sum().backward()
        optimizer.step()

    step()
    manager = FSDPCheckpointManager(model, optimizer, scheduler)
    if action == "save":
        manager.save_checkpoint(folder)
    else:
        manager.load_checkpoint(folder)
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    sums = [local(each).double().abs().sum() for each in (*model.parameters(), *moments)]
    total = torch.stack(sums).sum()
    dist.all_reduce(total)
    places = sorted({str(local(each).device) for each in (*model.parameters(), *moments)})
    step()  # what was loaded is where training goes on
    # Saving elsewhere than through the manager stays as torch has it.
    torch.save(local(moments[0]), f"{folder}/other_{dist.get_rank()}.pt")
    print(json.dumps([dist.get_rank(), float(total), places]))
    dist.destroy_process_group()


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


main()
