"""One child interpreter with emulated devices and the shim as it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any


def run(body: str, count: int = 1, **environment: str) -> Any:
    """What `body` prints as JSON on its last line."""
    emulation = {"XPU_EMU": "1", "XPU_EMU_DEVICE_COUNT": str(count), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body)],
        env={**os.environ, **emulation, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return json.loads(done.stdout.splitlines()[-1])
