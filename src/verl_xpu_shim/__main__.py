"""``python -m verl_xpu_shim``: the same as ``verl-xpu-shim``."""

from __future__ import annotations

import sys

from verl_xpu_shim.cli import main

if __name__ == "__main__":
    sys.exit(main())
