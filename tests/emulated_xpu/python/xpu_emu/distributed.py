"""torch.distributed's `xccl` backend over the emulated one."""


def install():
    import torch

    from xpu_emu.native import extension as e

    C = torch._C
    # ---- torch.distributed --------------------------------------------------
    import torch.distributed.distributed_c10d as dc

    class _Meta(type):
        def __call__(cls, store, rank, size, options=None):
            options = options or cls.Options()
            gloo = dc.ProcessGroupGloo(dc.PrefixStore("xccl_emu", store), rank, size, timeout=options._timeout)
            return e.XcclBackend(gloo, rank, size, options)

        def __instancecheck__(cls, obj):
            return isinstance(obj, e.XcclBackend)

    class ProcessGroupXCCL(metaclass=_Meta):
        Options = e.XcclOptions

    dc.ProcessGroupXCCL = ProcessGroupXCCL
    C._distributed_c10d.ProcessGroupXCCL = ProcessGroupXCCL
    torch.distributed.ProcessGroupXCCL = ProcessGroupXCCL
    dc._XCCL_AVAILABLE = True
