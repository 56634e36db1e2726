"""Weight updates of a rollout engine that dies: verl's own sender, receiver and server, real Ray, emulated XPU."""

from __future__ import annotations

from emulated.child import run

SENDER = """
import asyncio, json, os, sys, threading, time
import ray, torch
from verl.workers.rollout.vllm_rollout import bucketed_weight_transfer as transfer
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

@ray.remote(num_cpus=0)
class Server:  # stands for vLLMHttpServer, which would need an engine
    def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        CALL

adapter = ServerAdapter.__new__(ServerAdapter)
adapter._ensure_server_handle = lambda: True
ray.init(num_cpus=1, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
adapter.server_handle = Server.remote()
sender = transfer.BucketedWeightSender(f"ipc:///tmp/weight-sync-{os.getpid()}.sock", 1, use_shm=True)
weights = {f"layer.{i}": torch.full((100_000,), float(i), device="xpu") for i in range(6)}  # three buckets
received = {}

async def update():
    future = await adapter._execute_method("update_weights_from_ipc", non_block=True, kwargs={"use_shm": True})
    RECEIVER
    await sender.async_send_weights(iter(weights.items()))
    await future

began = time.monotonic()
try:
    asyncio.run(update())
    said = "nothing"
except Exception as error:
    said = f"{type(error).__name__}: {error}"
print(json.dumps([said, time.monotonic() - began, {name: len(set(each)) for name, each in received.items()}]))
"""

RECEIVER = """
    def receive():
        def load(weights, is_last):
            received.update({name: tensor.tolist() for name, tensor in weights})
            if len(received) >= LIMIT:
                raise SystemExit
        transfer.BucketedWeightReceiver(sender.zmq_handle, torch.device("xpu"), use_shm=True).receive_weights(load)
    threading.Thread(target=receive, daemon=True).start()
"""


def update(call: str, limit: int | None) -> tuple[str, float, dict[str, int]]:
    """What the sender said, after how long, and what was received by an engine that dies after `limit` weights."""
    receiver = "pass" if limit is None else RECEIVER.replace("LIMIT", str(limit)).strip()
    said, seconds, received = run(SENDER.replace("CALL", call).replace("RECEIVER", receiver), RAY_ADDRESS="local")
    return said, seconds, received


def test_weights_reach_a_living_engine() -> None:
    said, _, received = update("time.sleep(1)", limit=100)
    assert (said, len(received), set(received.values())) == ("nothing", 6, {1})


def test_an_engine_that_is_dead_before_it_asks_for_weights() -> None:
    said, seconds, _ = update("raise RuntimeError('the engine is dead')", limit=None)
    assert "RuntimeError: the engine is dead" in said
    assert seconds < 60


def test_an_engine_that_dies_with_half_of_the_weights() -> None:
    said, seconds, received = update("time.sleep(3); raise RuntimeError('the engine is dead')", limit=2)
    assert "RuntimeError: the engine is dead" in said
    assert len(received) == 2
    assert seconds < 60


SERVER = """
import asyncio, json
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

class Engine:  # stands for vLLM's client of an engine that has been killed: its call stays open for ever
    errored = False
    async def collective_rpc(self, method, timeout, args, kwargs):
        if method == "quick":
            return
        self.errored = True
        await asyncio.Event().wait()

server = vLLMHttpServer.__new__(vLLMHttpServer)
server.engine, server.replica_rank = Engine(), 3

async def main():
    await server.collective_rpc("quick")
    try:
        await asyncio.wait_for(server.collective_rpc("update_weights_from_ipc", timeout=None, args=(), kwargs={}), 30)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

print(json.dumps(asyncio.run(main())))
"""


def test_a_call_to_an_engine_that_dies_fails_and_names_the_replica() -> None:
    said = run(SERVER)
    assert said.startswith("RuntimeError: The vLLM engine of rollout replica 3 failed while it ran update_weights_from")
    assert ": it died. " in said
