"""`XPU_EMU_LATE_COPY=1`: what isn't synchronised is wrong."""

from __future__ import annotations

import torch

from .harness import emulated

late = emulated(late_copy="1")


def device(value: float = 1.0) -> torch.Tensor:
    return torch.full((4,), value, device="xpu")


def arrived(host: torch.Tensor, value: float = 1.0) -> bool:
    assert torch.isnan(host).all() or torch.equal(host, torch.full_like(host, value))
    return not torch.isnan(host).any().item()


@late
def test_the_host_sees_nothing_before_it_waits() -> None:
    host = device().to("cpu", non_blocking=True)
    assert not arrived(host)
    torch.xpu.synchronize()
    assert arrived(host)


@late
def test_every_dtype_is_spoilt() -> None:
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float16, torch.complex64):
        source = torch.ones(3, 2, dtype=dtype, device="xpu").t()
        host = source.to("cpu", non_blocking=True)
        assert not (host == torch.ones_like(host)).any()
        torch.xpu.synchronize()
        assert torch.equal(host, torch.ones_like(host))
    host = device().to("cpu", torch.float64, non_blocking=True)
    assert not arrived(host)
    torch.xpu.synchronize()
    assert arrived(host)


@late
def test_what_blocks_completes_what_its_stream_did_before() -> None:
    source = device()
    assert arrived(source.cpu())
    for block in (
        lambda: source.cpu(),
        lambda: torch.ones(1).to("xpu"),
        lambda: source[0].item(),
        lambda: source.nonzero(),
        lambda: torch.equal(source, source),
    ):
        host = source.to("cpu", non_blocking=True)
        assert not arrived(host)
        block()
        assert arrived(host)


@late
def test_what_arrives_is_the_source_as_it_was() -> None:
    source = device()
    host = source.to("cpu", non_blocking=True)
    source.fill_(2)
    del source
    torch.xpu.synchronize()
    assert arrived(host)


@late
def test_copy_into_a_given_tensor_and_foreach_copy_are_late_too() -> None:
    first, second, pinned = torch.ones(4), torch.ones(4), torch.ones(4).pin_memory()
    first.copy_(device(), non_blocking=True)
    torch._foreach_copy_([second, pinned], [device(), device()], non_blocking=True)
    assert [arrived(host) for host in (first, second, pinned)] == [False] * 3
    torch.accelerator.synchronize()
    assert [arrived(host) for host in (first, second, pinned)] == [True] * 3


@late
def test_kernels_and_the_other_device_complete_nothing() -> None:
    host = device().to("cpu", non_blocking=True)
    (device() * 2).sum()
    torch.xpu.synchronize(1)
    torch.ones(1, device="xpu:1").item()
    assert not arrived(host)
    torch.xpu.synchronize(0)
    assert arrived(host)


@late
def test_an_event_covers_what_came_before_it() -> None:
    before = device().to("cpu", non_blocking=True)
    event = torch.xpu.Event()
    event.record()
    after = device().to("cpu", non_blocking=True)
    event.synchronize()
    assert arrived(before)
    assert not arrived(after)
    torch.xpu.current_stream().synchronize()
    assert arrived(after)


@late
def test_waiting_in_a_stream_is_not_waiting_on_the_host() -> None:
    copier, waiter = torch.xpu.Stream(), torch.xpu.Stream()
    with torch.xpu.stream(copier):
        host = device().to("cpu", non_blocking=True)
    waiter.wait_stream(copier)
    assert not arrived(host)
    torch.xpu.current_stream().synchronize()
    assert not arrived(host)
    waiter.synchronize()
    assert arrived(host)


@late
def test_polling_comes_to_an_end() -> None:
    host = device().to("cpu", non_blocking=True)
    event = torch.xpu.Event()
    event.record()
    assert not event.query()
    assert event.query()
    assert arrived(host)


@late
def test_a_pinned_source_is_read_when_the_device_needs_it() -> None:
    pinned, pageable = torch.ones(4).pin_memory(), torch.ones(4)
    from_pageable, from_pinned = pageable.to("xpu", non_blocking=True), pinned.to("xpu", non_blocking=True)
    pinned.fill_(5)
    pageable.fill_(5)
    assert from_pinned.sum().item() == 20, "overwritten before it was sent"
    assert from_pageable.sum().item() == 4, "torch stages pageable memory"
    kept = torch.ones(4).pin_memory().to("xpu", non_blocking=True)
    assert kept.sum().item() == 4


@late
def test_there_and_back_in_one_stream() -> None:
    host = torch.empty(4).pin_memory()
    host.copy_(device(3.0), non_blocking=True)
    back = host.to("xpu", non_blocking=True)
    assert back.sum().item() == 12


@emulated()
def test_without_the_knob_copies_are_done_at_once() -> None:
    assert arrived(device().to("cpu", non_blocking=True))
