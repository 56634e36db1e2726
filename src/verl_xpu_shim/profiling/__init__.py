"""Named ranges of a run: where they begin and end, and where they are sent (ITT for VTune, Chrome trace events)."""

from __future__ import annotations

from typing import Final

#: The domain of every range that names no other.
DOMAIN: Final = "verl"
