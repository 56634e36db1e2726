"""Intel GPUs as a verl platform."""

from __future__ import annotations


def on_xpu() -> bool:
    """Whether verl runs on Intel GPUs in this process. Asked when a patched function is called, never at import."""
    from verl.plugin.platform import get_platform

    return bool(get_platform().device_name == "xpu")
