"""What the processes that `harness.py` starts run."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # the harness under the name that the tests know it by

from emulated_xpu import harness  # noqa: E402

if len(sys.argv) > 1:
    harness.rank(*sys.argv[1:])
else:
    harness.serve()
