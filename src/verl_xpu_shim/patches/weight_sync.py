"""``weight_sync``: when a rollout engine dies, the update of its weights fails, where it would wait for ever.

Without shared device memory verl sends weights through a socket and waits for each reply without a limit, and vLLM
never completes a call that was under way when its engine died (``AsyncMPClient._call_utility_async``, vLLM 0.30). Both
learn to look at the other side while they wait: the server's call fails with the engine, and the sender gives up with
the call that receives. Nothing here limits how long a living engine may take.

Can go once verl's sender watches its receiver, and vLLM fails its pending calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.platform import on_xpu

EXECUTE: Final = ("self", "method", "non_block", "timeout", "args", "kwargs")

LOOK_SECONDS: Final = 1.0
"""How often whoever waits looks at the other side."""

_receiving: Final[ContextVar[Any]] = ContextVar("verl_xpu_shim.receiving", default=None)
"""The server's call (a Ray object reference) in which an engine receives what this task is about to send."""


class WatchedSocket:
    """The socket of a sender, which waits only while ``call`` is under way; has what verl's sender uses of one."""

    def __init__(self, socket: Any, call: Any) -> None:
        self._socket: Final = socket
        self._call: Final = call

    def send_pyobj(self, message: Any) -> None:
        import zmq

        self._wait(zmq.POLLOUT)
        self._socket.send_pyobj(message)

    def recv(self) -> bytes:
        import zmq

        self._wait(zmq.POLLIN)
        reply: bytes = self._socket.recv()
        return reply

    def close(self) -> None:
        self._socket.close(linger=0)

    def _wait(self, event: int) -> None:
        import ray

        while not self._socket.poll(LOOK_SECONDS * 1e3, event):
            done, _ = ray.wait([self._call], timeout=0)
            if done:
                ray.get(done)  # raises what the engine raised
                raise RuntimeError("The rollout engine's weight update ended before it had received all weights.")


def _remember(original: Callable[..., Any]) -> Callable[..., Any]:
    async def execute(self: Any, method: str, non_block: bool = False, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, method, non_block, *args, **kwargs)
        _receiving.set(result if non_block else None)
        return result

    return execute


def _watch_receiver(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def init_socket(self: Any) -> None:
        original(self)
        call = _receiving.get()
        if (
            call is not None and on_xpu()
        ):  # ranks other than an engine's first have no call: that one's error ends the job
            self.socket = WatchedSocket(self.socket, call)

    return init_socket


def _watch_engine(original: Callable[..., Any]) -> Callable[..., Any]:
    async def collective_rpc(self: Any, method: Any, *args: Any, **kwargs: Any) -> None:
        if not on_xpu():
            await original(self, method, *args, **kwargs)
            return
        call = asyncio.ensure_future(original(self, method, *args, **kwargs))
        try:
            while not (await asyncio.wait({call}, timeout=LOOK_SECONDS))[0]:
                if self.engine.errored:
                    call.cancel()
                    raise RuntimeError("it died")
            await call
        except Exception as error:
            raise RuntimeError(
                f"The vLLM engine of rollout replica {self.replica_rank} failed while it ran {method}: {error}. "
                "Its own lines in the log (EngineCore, Worker) say more, or the kernel's if memory ran out."
            ) from error

    return collective_rpc


CAPABILITY: Final = Capability(
    name="weight_sync",
    required=False,
    summary="the update of a rollout engine's weights fails when the engine dies, and doesn't wait for ever",
    targets=(
        Target(
            "verl.workers.rollout.vllm_rollout.vllm_rollout",
            lambda module, edit: edit.wrap(module.ServerAdapter, "_execute_method", _remember),
            (
                Parameters(
                    "ServerAdapter._execute_method", ("self", "method", "non_block", "timeout", "args", "kwargs")
                ),
                Mentions("ServerAdapter.update_weights", ("_execute_method", "BucketedWeightSender")),
            ),
        ),
        Target(
            "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer",
            lambda module, edit: edit.wrap(module.BucketedWeightSender, "_init_socket", _watch_receiver),
            (
                Parameters("BucketedWeightSender._init_socket", ("self",)),
                Mentions("BucketedWeightSender._init_buffer", ("send_pyobj", "recv")),
                Mentions("BucketedWeightSender.async_send_weights", ("send_pyobj", "recv", "_cleanup")),
            ),
        ),
        Target(
            "verl.workers.rollout.vllm_rollout.vllm_async_server",
            lambda module, edit: edit.wrap(module.vLLMHttpServer, "collective_rpc", _watch_engine),
            (
                Parameters("vLLMHttpServer.collective_rpc", ("self", "method", "timeout", "args", "kwargs")),
                Mentions("vLLMHttpServer.collective_rpc", ("engine",)),
            ),
        ),
    ),
)
