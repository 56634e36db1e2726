"""Starts verl's own worker groups on a real local Ray and prints, as JSON, on which device each rank ended.

    python ray_workers.py '{"gpus": null, "groups": [{"ranks": 2, "env": {}}]}'

Run by `test_ray_devices.py`, with the environment under test.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import ray
from verl.single_controller.base.worker import Worker
from verl.single_controller.ray.base import RayClassWithInitArgs
from verl.single_controller.ray.base import RayResourcePool
from verl.single_controller.ray.base import RayWorkerGroup

MASK = "ZE_AFFINITY_MASK"


class Probe(Worker):
    """What a rank sees once verl has set it up."""

    def __init__(self, note: str = "", cuda_visible_devices: str | None = None) -> None:
        super().__init__(cuda_visible_devices)
        self.note = note

    def report(self) -> dict[str, Any]:
        import torch

        return {
            "rank": self.rank,
            "physical": torch.xpu.get_device_properties().physical_index,
            "ordinal": torch.xpu.current_device(),
            "local_rank": int(os.environ.get("LOCAL_RANK", "-1")),
            "sees": torch.xpu.device_count(),
            "mask": os.environ.get(MASK),
            "selector": os.environ.get("ONEAPI_DEVICE_SELECTOR"),
            "ray": ray.get_runtime_context().get_accelerator_ids()["GPU"],
        }

    def collective(self) -> float:
        import torch
        from verl.utils.distributed import initialize_global_process_group_ray

        initialize_global_process_group_ray(timeout_second=60)
        tensor = torch.tensor(float(self.rank + 1), device="xpu")
        torch.distributed.all_reduce(tensor)
        torch.distributed.destroy_process_group()
        return float(tensor)


def call(group: RayWorkerGroup, method: str) -> list[Any]:
    found: list[Any] = ray.get([getattr(worker, method).remote() for worker in group.workers])
    return found


def run(spec: dict[str, Any]) -> Any:
    pool = RayResourcePool([spec["ranks"]], max_colocate_count=spec.get("colocate", 1))
    groups = [
        RayWorkerGroup(
            pool,
            RayClassWithInitArgs(ray.remote(Probe)),
            device_name="xpu",
            worker_env=dict(spec.get("env", {})),
        )
        for _ in range(spec.get("actors", 1))
    ]
    result = [
        {"ranks": call(group, "report"), "sums": call(group, "collective") if spec["ranks"] > 1 else []}
        for group in groups
    ]
    for mask in spec.get("beside", ()):
        # What RayClassWithInitArgs does for `sharing_with`; it asks for a get_node_id that no verl worker has.
        mask = mask or ray.get(groups[0].workers[0].get_cuda_visible_devices.remote())
        cls = ray.remote(Probe).options(num_cpus=0, runtime_env={"env_vars": environment(groups[0])})
        result.append({"ranks": [ray.get(cls.remote(cuda_visible_devices=mask).report.remote())], "sums": []})
    for group in groups:
        for worker in group.workers:
            ray.kill(worker)
    for pg in pool.pgs:
        ray.util.remove_placement_group(pg)
    return result


def environment(group: RayWorkerGroup) -> dict[str, str]:
    return {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": group._master_addr, "MASTER_PORT": str(group._master_port)}


def main() -> None:
    spec = json.loads(sys.argv[1])
    ray.init(num_cpus=16, num_gpus=spec.get("gpus"), include_dashboard=False, logging_level="ERROR")
    print(json.dumps([run(group) for group in spec["groups"]]))


if __name__ == "__main__":
    main()
