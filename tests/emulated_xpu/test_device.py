"""torch on one process's emulated devices."""

from __future__ import annotations

import gc
import io
import os

import pytest
import torch
from torch import nn

from .harness import emulated


@emulated()
def test_it_looks_like_an_xpu_build() -> None:
    assert torch.version.xpu == "20250301"
    assert torch.xpu.is_available()
    assert torch.xpu.device_count() == torch.accelerator.device_count() == 2
    assert torch.accelerator.current_accelerator().type == "xpu"
    assert torch.distributed.is_xccl_available()
    assert torch.distributed.get_default_backend_for_device("xpu") == "xccl"
    assert isinstance(torch.xpu.get_device_capability()["has_fp64"], bool)
    assert torch.xpu.is_bf16_supported()
    assert not torch.xpu.is_current_stream_capturing()


@emulated()
def test_devices_differ_in_identity() -> None:
    first, second = (torch.xpu.get_device_properties(i) for i in range(2))
    assert (first.physical_index, second.physical_index) == (0, 1)
    assert str(first.uuid) != str(second.uuid)
    assert len(first.uuid.bytes) == 16
    assert first.pci_address != second.pci_address
    with pytest.raises(RuntimeError, match="out of range"):
        torch.xpu.get_device_properties(2)
    with pytest.raises(RuntimeError, match="out of range"):
        torch.xpu.set_device(2)
    with pytest.raises(RuntimeError, match="out of range"):
        torch.zeros(1, device="xpu:5")


@emulated()
def test_current_device_is_followed() -> None:
    with torch.xpu.device(1):
        assert torch.ones(1, device="xpu").device.index == torch.xpu.current_device() == 1
    assert torch.xpu.current_device() == 0
    with torch.device("xpu:1"):
        assert torch.zeros(1).device == torch.device("xpu:1")
    a = torch.rand(3, device="xpu:1", requires_grad=True)
    (a * 2).to("xpu:0").sum().backward()
    assert a.grad is not None
    assert a.grad.device.index == 1


@emulated()
def test_views_share_memory_and_in_place_writes_go_through() -> None:
    a = torch.arange(12.0, device="xpu").view(3, 4)
    a.split(2, 1)[0].zero_()
    assert a[:, 0].sum().item() == 0
    a[a > 6] = -1.0
    a[torch.tensor([0, 2])] += 1  # an index may lie on the CPU
    a.t().copy_(torch.ones(4, 3))
    assert a.sum().item() == 12
    a.unfold(1, 2, 1)[0, 0, 0] = 5
    assert a[0, 0].item() == 5
    out = torch.empty(0, device="xpu")
    torch.add(a, a, out=out)
    assert out.shape == a.shape
    assert out.device.type == "xpu"
    storage = out.untyped_storage()
    storage.resize_(0)
    assert storage.device.type == "xpu"
    storage.resize_(48)
    assert out.fill_(2).sum().item() == 24


@emulated()
def test_it_computes_what_the_cpu_computes() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(4, 5), torch.randn(5, 3)
    for function in (
        lambda a, b: a @ b,
        lambda a, b: (a.softmax(-1).log() * 2 + 1).std(),
        lambda a, b: torch.linalg.svd(a)[1],
        lambda a, b: torch.einsum("ij,jk->ik", a, b).topk(2).values,
        lambda a, b: torch.complex(a, a).abs(),
        lambda a, b: a.double().sum() + b.to(torch.bfloat16).sum(),
        lambda a, b: nn.functional.conv2d(a.view(1, 1, 4, 5), b.view(1, 1, 5, 3)[..., :4, :]),
    ):
        assert torch.equal(function(a.to("xpu"), b.to("xpu")).cpu(), function(a, b))


@emulated()
def test_tensors_of_two_devices_do_not_mix() -> None:
    here, there, cpu = torch.ones(2, 2, device="xpu:0"), torch.ones(2, 2, device="xpu:1"), torch.ones(2, 2)
    for mix in (lambda: here + cpu, lambda: here @ cpu, lambda: here + there, lambda: torch.cat([here, cpu])):
        with pytest.raises(RuntimeError, match="at least two devices"):
            mix()
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
        here.numpy()
    assert (here + torch.tensor(1.0)).sum().item() == 8  # a CPU scalar may


@emulated()
def test_training_equals_the_cpu() -> None:
    def losses(device: str, **options: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).to(device)
        x, y = torch.randn(16, 4).to(device), torch.randint(0, 2, (16,)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, **options)
        seen = []
        for _ in range(5):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            seen.append(loss.item())
        return seen

    for options in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        assert losses("xpu", **options) == pytest.approx(losses("cpu", **options), abs=1e-6)


@emulated()
def test_attention_with_a_mask_is_differentiable() -> None:
    query = torch.randn(1, 2, 4, 8, device="xpu", requires_grad=True)
    mask = torch.ones(4, 4, dtype=torch.bool, device="xpu").tril()
    nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask).sum().backward()
    gradient, query.grad = query.grad, None
    nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    assert torch.allclose(gradient, query.grad, atol=1e-6)


@emulated()
def test_modules_checkpointing_compile_and_fake_tensors() -> None:
    from torch._subclasses import FakeTensorMode
    from torch.utils.checkpoint import checkpoint

    x = torch.rand(2, 4, device="xpu", requires_grad=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to("xpu")
    for reentrant in (True, False):
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    nn.TransformerEncoderLayer(8, 2).to("xpu")(torch.rand(3, 2, 8, device="xpu")).sum().backward()
    nn.Embedding(5, 3, device="xpu")(torch.tensor([1, 2], device="xpu")).sum().backward()
    torch.compile(lambda x: (x * 2).sin(), backend="aot_eager")(x).sum().backward()
    with FakeTensorMode():
        assert (torch.rand(3, device="xpu") + 1).device.type == "xpu"
    nested = torch.nested.as_nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], layout=torch.jagged, device="xpu")
    assert (nested * 2).to_padded_tensor(0.0).shape == (2, 4, 3)
    with torch.device("meta"):
        meta = nn.Linear(2, 2)
    assert meta.to_empty(device="xpu").weight.is_xpu
    with torch.autocast("xpu", dtype=torch.bfloat16):
        assert (x @ x.t()).dtype is torch.bfloat16


@emulated()
def test_random_numbers_follow_the_devices_generator() -> None:
    torch.xpu.manual_seed(1)
    first = torch.randn(4, device="xpu")
    assert not torch.equal(first, torch.randn(4, device="xpu"))
    torch.xpu.manual_seed(1)
    assert torch.equal(first, torch.randn(4, device="xpu"))

    state = torch.xpu.get_rng_state()
    drawn = torch.rand(3, device="xpu")
    torch.xpu.set_rng_state(state)
    assert torch.equal(drawn, torch.rand(3, device="xpu"))

    generator = torch.Generator(device="xpu").manual_seed(3)
    drawn = torch.rand(3, device="xpu", generator=generator)
    assert torch.equal(drawn, torch.rand(3, device="xpu", generator=generator.manual_seed(3)))
    with pytest.raises(RuntimeError, match="'xpu' device type for generator"):
        torch.rand(3, device="xpu", generator=torch.Generator())

    torch.manual_seed(7)
    on_cpu = torch.rand(1)
    torch.manual_seed(7)
    dropped = nn.functional.dropout(torch.ones(100, device="xpu"), 0.5)
    assert torch.equal(on_cpu, torch.rand(1)), "the CPU's generator was disturbed"
    torch.manual_seed(7)
    assert torch.equal(dropped, nn.functional.dropout(torch.ones(100, device="xpu"), 0.5))
    with torch.random.fork_rng(devices=[0], device_type="xpu"):
        torch.randperm(10, device="xpu")


@emulated(mem_mb="64")
def test_memory_is_counted_and_runs_out() -> None:
    gc.collect()
    torch.xpu.reset_peak_memory_stats()
    before = torch.xpu.memory_allocated()
    a = torch.empty(1 << 20, device="xpu")
    b = a + 1
    assert torch.xpu.memory_allocated() - before == 8 << 20
    free, total = torch.xpu.mem_get_info()
    assert (total, total - free) == (64 << 20, torch.xpu.memory_allocated())
    assert torch.xpu.get_device_properties().total_memory == total
    with pytest.raises(torch.OutOfMemoryError, match="XPU out of memory"):
        torch.empty(64 << 20, device="xpu")
    torch.xpu.set_per_process_memory_fraction(0.5)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(10 << 20, device="xpu")
    torch.xpu.set_per_process_memory_fraction(1.0)
    del a, b
    torch.xpu.empty_cache()
    assert torch.xpu.memory_allocated() == torch.xpu.memory_reserved() == before
    assert torch.xpu.max_memory_allocated() == before + (8 << 20)
    assert torch.xpu.memory_stats()["num_ooms"] == 2
    assert torch.accelerator.memory_allocated() == before


@emulated(mem_get_info="raise", name="Intel(R) Arc(TM) Graphics")
def test_a_client_gpu_does_not_know_its_free_memory() -> None:
    assert torch.xpu.get_device_name() == "Intel(R) Arc(TM) Graphics"
    with pytest.raises(RuntimeError, match="doesn't support querying the available free memory"):
        torch.xpu.mem_get_info()
    assert torch.xpu.memory_allocated() == 0


@emulated()
def test_streams_and_events() -> None:
    stream, other = torch.xpu.Stream(), torch.xpu.Stream()
    assert isinstance(stream, torch.Stream)
    assert stream != other
    start, end = torch.xpu.Event(enable_timing=True), torch.xpu.Event(enable_timing=True)
    with torch.xpu.stream(stream):
        assert torch.xpu.current_stream() == stream
        assert torch.accelerator.current_stream().stream_id == stream.stream_id
        start.record()
        torch.ones(3, device="xpu").record_stream(stream)
        end.record()
    assert torch.xpu.current_stream() != stream
    other.wait_stream(stream)
    other.wait_event(end)
    other.synchronize()
    end.synchronize()
    assert end.query()
    assert stream.query()
    assert start.elapsed_time(end) >= 0
    torch.xpu.synchronize()
    torch.accelerator.synchronize()


@emulated()
def test_pinned_memory() -> None:
    pinned = torch.ones(4).pin_memory()
    assert pinned.is_pinned()
    assert pinned[1:].is_pinned()
    assert not torch.ones(4).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert pinned.to("xpu", non_blocking=True).sum().item() == 4
    with pytest.raises(RuntimeError, match="can be pinned"):
        torch.empty(3, device="xpu", pin_memory=True)
    dataset = torch.utils.data.TensorDataset(torch.arange(4))
    (batch,) = next(iter(torch.utils.data.DataLoader(dataset, batch_size=4, pin_memory=True)))
    assert batch.is_pinned()


@emulated()
def test_saved_tensors_remember_their_device() -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(3, device="xpu:1"), "b": torch.ones(2)}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    assert loaded["a"].device == torch.device("xpu:1")
    assert loaded["b"].is_cpu
    buffer.seek(0)
    assert torch.load(buffer, map_location="cpu")["a"].is_cpu


@emulated()
def test_a_forked_child_cannot_use_it() -> None:
    torch.xpu.init()
    child = os.fork()
    if child == 0:
        try:
            torch.xpu.set_device(0)
        except RuntimeError as error:
            os._exit(0 if "Cannot re-initialize XPU in forked subprocess" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
