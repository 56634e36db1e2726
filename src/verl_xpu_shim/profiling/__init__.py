"""Named ranges of a run: where they begin and end, and where they are sent (ITT for VTune, Chrome trace events)."""
